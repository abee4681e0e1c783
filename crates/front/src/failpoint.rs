//! Fail points: faults that tests switch on with `configureFailPoint`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

/// The fail points that this server knows, each asked somewhere in it. Others give
/// `FailPointSetFailed`, as in MongoDB.
const KNOWN: &[&str] = &[
    "failCommand",
    "failGetMoreAfterCursorCheckout",
    "hangBeforeDDLPhase",
    "maxTimeAlwaysTimeOut",
    "maxTimeNeverTimeOut",
    "onPrimaryTransactionalWrite",
    "shortSessionTimeout",
    "stopReplProducer",
];

#[derive(Clone, Copy, Debug)]
enum Mode {
    Off,
    AlwaysOn,
    Times(i64),
    Skip(i64),
    Probability(f64),
}

struct FailPoint {
    mode: Mode,
    data: DocBuf,
    entered: i64,
}

/// All fail points of the node.
#[derive(Default)]
pub struct FailPoints {
    /// Fail points that are not off: the one thing that is read when none is.
    active: AtomicUsize,
    points: Mutex<HashMap<&'static str, FailPoint>>,
}

impl FailPoints {
    /// Whether any fail point is on; cheap.
    pub fn any(&self) -> bool {
        self.active.load(Ordering::Relaxed) != 0
    }

    /// Switches a fail point on or off; gives how often it has been entered.
    ///
    /// Errors: `FailPointSetFailed` for an unknown name, `BadValue`/`TypeMismatch` for a bad mode.
    pub fn configure(&self, name: &str, mode: Value<'_>, data: RawDoc<'_>) -> Result<i64> {
        let Some(name) = KNOWN.iter().find(|known| **known == name) else {
            bail!(Code::FAIL_POINT_SET_FAILED, "{name} not found");
        };
        let mode = parse_mode(mode)?;
        let mut points = self.points.lock();
        let point =
            points.entry(name).or_insert(FailPoint { mode: Mode::Off, data: DocBuf::new(), entered: 0 });
        let entered = point.entered;
        *point = FailPoint { mode, data: DocBuf::from(data), entered };
        let active = points.values().filter(|point| !matches!(point.mode, Mode::Off)).count();
        self.active.store(active, Ordering::Relaxed);
        Ok(entered)
    }

    /// Whether the fail point strikes now for a caller whose data `applies`; its data if so.
    pub fn enter(&self, name: &str, applies: impl Fn(RawDoc<'_>) -> bool) -> Option<DocBuf> {
        if !self.any() {
            return None;
        }
        let mut points = self.points.lock();
        let point = points.get_mut(name)?;
        if matches!(point.mode, Mode::Off) || !applies(point.data.as_raw()) {
            return None;
        }
        let strikes = match &mut point.mode {
            Mode::Off => false,
            Mode::AlwaysOn => true,
            Mode::Times(left) => {
                *left -= 1;
                if *left <= 0 {
                    point.mode = Mode::Off;
                }
                true
            }
            Mode::Skip(left) if *left > 0 => {
                *left -= 1;
                false
            }
            Mode::Skip(_) => true,
            Mode::Probability(p) => rand::random::<f64>() < *p,
        };
        if !strikes {
            return None;
        }
        point.entered += 1;
        let data = point.data.clone();
        let active = points.values().filter(|point| !matches!(point.mode, Mode::Off)).count();
        self.active.store(active, Ordering::Relaxed);
        Some(data)
    }
}

fn parse_mode(mode: Value<'_>) -> Result<Mode> {
    match mode {
        Value::String("off") => Ok(Mode::Off),
        Value::String("alwaysOn") => Ok(Mode::AlwaysOn),
        Value::String(other) => bail!(Code::BAD_VALUE, "unknown mode: {other}"),
        Value::Document(doc) => {
            let number = |name: &str| doc.get(name).and_then(|v| v.as_f64());
            if let Some(n) = number("times") {
                if n < 0.0 {
                    bail!(Code::BAD_VALUE, "'times' option to 'mode' must be positive");
                }
                return Ok(if n == 0.0 { Mode::Off } else { Mode::Times(n as i64) });
            }
            if let Some(n) = number("skip") {
                if n < 0.0 {
                    bail!(Code::BAD_VALUE, "'skip' option to 'mode' must be positive");
                }
                return Ok(Mode::Skip(n as i64));
            }
            if let Some(p) = number("activationProbability") {
                if !(0.0..=1.0).contains(&p) {
                    bail!(Code::BAD_VALUE, "activationProbability must be between 0.0 and 1.0; found {p}");
                }
                return Ok(Mode::Probability(p));
            }
            bail!(Code::BAD_VALUE, "'mode' must be one of 'times', 'skip' and 'activationProbability'")
        }
        other => {
            bail!(Code::TYPE_MISMATCH, "'mode' must be a string or JSON object; found: {}", other.type_name())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_bson::doc;

    #[test]
    fn modes() {
        let points = FailPoints::default();
        let set = |mode: &DocBuf| {
            points.configure("failCommand", Value::Document(mode.as_raw()), RawDoc::EMPTY).unwrap();
        };
        let struck = || points.enter("failCommand", |_| true).is_some();
        set(&doc! { "times": 2 });
        assert_eq!([struck(), struck(), struck()], [true, true, false]);
        assert!(!points.any());
        set(&doc! { "skip": 1 });
        assert_eq!([struck(), struck(), struck()], [false, true, true]);
        assert!(points.configure("nonesuch", Value::String("off"), RawDoc::EMPTY).is_err());
    }
}
