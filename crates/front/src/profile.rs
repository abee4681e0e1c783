//! The slow-operation log and the profiler's settings.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use parking_lot::RwLock;
use sheaf_errors::{Code, Result, bail};
use sheaf_query::matcher::Matcher;

/// Settings of one database.
#[derive(Clone)]
pub struct ProfileSettings {
    /// 0 off, 1 slow operations, 2 all.
    pub level: i32,
    /// `filter`: replaces `slowms` and `sampleRate` where it is set.
    pub filter: Option<Arc<Matcher>>,
}

/// What the settings of all databases may have, with their filters as they were sent.
const KEPT_BYTES: usize = 16 << 20;

impl ProfileSettings {
    fn bytes(&self, db: &str) -> usize {
        // A filter that is read has several times the size in which it came.
        100 + db.len() + self.filter.as_ref().map_or(0, |filter| filter.filter().len())
    }
}

/// Profiling levels by database, and what counts as slow.
pub struct Profiling {
    default_level: i32,
    /// `slowms`, for all databases.
    pub slow_ms: AtomicI64,
    /// `sampleRate` in millionths.
    sample_millionths: AtomicI64,
    /// Whether any database profiles or has a filter: all that most operations read.
    any: AtomicBool,
    levels: RwLock<HashMap<String, ProfileSettings>>,
}

impl Profiling {
    /// With the command line's settings.
    pub fn new(default_level: i32, slow_ms: i64, sample_rate: f64) -> Self {
        Profiling {
            default_level,
            slow_ms: AtomicI64::new(slow_ms),
            sample_millionths: AtomicI64::new((sample_rate * 1e6) as i64),
            any: AtomicBool::new(default_level > 0),
            levels: RwLock::default(),
        }
    }

    /// The settings of a database.
    pub fn of(&self, db: &str) -> ProfileSettings {
        let none = ProfileSettings { level: self.default_level, filter: None };
        self.levels.read().get(db).cloned().unwrap_or(none)
    }

    /// The settings of a database if they ask for anything; cheap when nobody profiles.
    pub fn active(&self, db: &str) -> Option<ProfileSettings> {
        self.any.load(Ordering::Relaxed).then(|| self.of(db))
    }

    /// Sets a database's level and filter.
    ///
    /// Errors: `ExceededMemoryLimit` if those of all databases become too large. They stay until the process ends, also for
    /// databases that do not exist, and no operation pays for them.
    pub fn set(&self, db: &str, settings: ProfileSettings) -> Result<()> {
        let mut levels = self.levels.write();
        let usual = settings.level == self.default_level && settings.filter.is_none();
        if usual {
            levels.remove(db);
            return Ok(());
        }
        let others = levels.iter().filter(|(name, _)| *name != db);
        let all: usize = others.map(|(name, others)| others.bytes(name)).sum();
        if all + settings.bytes(db) > KEPT_BYTES {
            bail!(
                Code::EXCEEDED_MEMORY_LIMIT,
                "The profiler's settings of all databases may have {KEPT_BYTES} bytes"
            );
        }
        if settings.level > 0 || settings.filter.is_some() {
            self.any.store(true, Ordering::Relaxed);
        }
        levels.insert(db.to_owned(), settings);
        Ok(())
    }

    /// `sampleRate`.
    pub fn sample_rate(&self) -> f64 {
        self.sample_millionths.load(Ordering::Relaxed) as f64 / 1e6
    }

    /// Sets `sampleRate`.
    pub fn set_sample_rate(&self, rate: f64) {
        self.sample_millionths.store((rate * 1e6) as i64, Ordering::Relaxed);
    }

    /// Whether this is `slowms` or more.
    pub fn takes_long(&self, millis: i64) -> bool {
        millis >= self.slow_ms.load(Ordering::Relaxed)
    }

    /// Whether an operation that took this long is logged as slow.
    pub fn is_slow(&self, millis: i64) -> bool {
        if !self.takes_long(millis) {
            return false;
        }
        let rate = self.sample_rate();
        rate >= 1.0 || rand::random::<f64>() < rate
    }
}
