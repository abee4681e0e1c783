//! Damage in the log's files, and what of the log can be kept all the same.
//!
//! A log is one run of entries without gaps. Where some of them cannot be read, it keeps what is before them, or what is behind them if
//! storage has all that is before. [`Mending`] says which, and does it: first everything that leaves the log gets a name in
//! another folder, then what stays of a segment takes its place as a new file, then the names of the others go. A crash
//! on the way leaves a log that is damaged as before, less damaged, or mended.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::position::OpTime;
use crate::recover::Scanner;
use crate::segment::{
    SEGMENT_HEADER_LEN, Segment, VERSION, VERSION_RECYCLED, base_for, list, segment_header, segment_path,
    sync_dir,
};
use crate::{Error, Result};

/// Bytes that had been durable and are not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// File name of the segment.
    pub segment: String,
    /// Where the unreadable entry starts in it; 0 if it is the segment's header that is not readable.
    pub offset: u64,
    /// Index of the first entry that cannot be read.
    pub entry: u64,
    /// Its term, if that can be.
    pub term: Option<u64>,
    /// What was found there.
    pub what: String,
}

impl Damage {
    /// The error of a segment that does not begin as one.
    pub(crate) fn of_header(segment: &Segment, what: impl Into<String>) -> Error {
        Error::Damaged(Damage {
            segment: segment.name(),
            offset: 0,
            entry: segment.first_index,
            term: None,
            what: what.into(),
        })
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { segment, offset, entry, term, what } = self;
        write!(f, "log is damaged in {segment} at byte {offset}, entry {entry}")?;
        if let Some(term) = term {
            write!(f, " (term {term})")?;
        }
        write!(f, ": {what}")
    }
}

/// Which of its entries a mended log has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// All: only the header of a segment is damaged.
    All,
    /// Those up to this one, which is before the damage.
    UpTo(OpTime),
    /// Those from this index on, behind the damage: storage has what is before them.
    From(u64),
    /// None: it begins anew behind what storage has.
    Nothing,
}

/// How a damaged log is made one that opens.
#[derive(Clone, Debug)]
pub struct Mending {
    /// What is wrong.
    pub damage: Damage,
    /// What stays.
    pub kept: Kept,
    /// The next entry that cannot be read, behind the first that stays: the log is still damaged then.
    pub next: Option<u64>,
    /// The last entry that can be read of those that are lost, which neither the log nor storage has then.
    pub last_lost: Option<OpTime>,
    dir: PathBuf,
    /// Segments that are no longer the log's.
    leaving: Vec<PathBuf>,
    remade: Option<Remade>,
}

/// A segment of which a part stays.
#[derive(Clone, Debug)]
struct Remade {
    from: PathBuf,
    /// The part, which follows the new header.
    begin: u64,
    end: u64,
    header: [u8; SEGMENT_HEADER_LEN as usize],
    path: PathBuf,
}

impl Mending {
    /// What is to be done about damage that [`Log::open`](crate::Log::open) has met, with the same `applied`. Only reads.
    pub fn of(dir: &Path, damage: Damage, applied: OpTime) -> Result<Mending> {
        let (mut segments, torn) = list(dir)?;
        segments.extend(torn);
        let at = segments.iter().position(|segment| segment.name() == damage.segment);
        let at = at.ok_or_else(|| Error::Damaged(damage.clone()))?;
        let behind = Behind::find(&segments, at, &damage)?;
        let paths = |segments: &[Segment]| segments.iter().map(|segment| segment.path.clone()).collect();
        let damaged = &segments[at];
        let mut mending = Mending {
            damage,
            kept: Kept::Nothing,
            next: None,
            last_lost: None,
            dir: dir.to_owned(),
            leaving: Vec::new(),
            remade: None,
        };
        let damage = &mending.damage;
        match behind.first {
            Some((place, offset, index)) if damage.offset == 0 && (place, index) == (at, damage.entry) => {
                mending.kept = Kept::All;
                mending.remade = Some(Remade::of(damaged, index, offset, damaged.bytes, dir));
            }
            _ if damage.entry > applied.index => {
                mending.kept = Kept::UpTo(last_before(&segments[..=at], damage, applied)?);
                mending.last_lost = behind.last;
                mending.leaving = paths(&segments[at..]);
                let first = damaged.first_index;
                mending.remade = (damage.offset > 0)
                    .then(|| Remade::of(damaged, first, SEGMENT_HEADER_LEN, damage.offset, dir));
            }
            Some((place, offset, index)) if index <= applied.index + 1 => {
                mending.kept = Kept::From(index);
                let whole = place > at && offset == SEGMENT_HEADER_LEN;
                mending.leaving = paths(&segments[..if whole { place } else { place + 1 }]);
                let source = &segments[place];
                mending.remade = (!whole).then(|| Remade::of(source, index, offset, source.bytes, dir));
            }
            _ => {
                mending.last_lost = behind.last.filter(|last| last.index > applied.index);
                mending.leaving = paths(&segments);
            }
        }
        if matches!(mending.kept, Kept::All | Kept::From(_)) {
            mending.next = behind.gap;
        }
        Ok(mending)
    }

    /// Whether the log does not have this entry any more.
    pub fn is_without(&self, index: u64) -> bool {
        match self.kept {
            Kept::All => false,
            Kept::UpTo(last) => index > last.index,
            Kept::From(first) => index < first,
            Kept::Nothing => true,
        }
    }

    /// Does it. What leaves the log is in the folder `aside` then, which is empty before.
    pub fn carry_out(&self, aside: &Path) -> Result<()> {
        self.in_steps(aside, &mut || {})
    }

    /// `step` is called between the changes of the log's folder.
    pub(crate) fn in_steps(&self, aside: &Path, step: &mut dyn FnMut()) -> Result<()> {
        let dir = File::open(&self.dir).map_err(|e| Error::io("opening the log folder", e))?;
        let remade = self.remade.iter().map(|remade| &remade.from);
        for path in self.leaving.iter().chain(remade.filter(|from| !self.leaving.contains(from))) {
            set_aside(path, aside).map_err(|e| Error::io(format!("setting {} aside", path.display()), e))?;
        }
        File::open(aside).and_then(|folder| folder.sync_all()).map_err(|e| Error::io("syncing names", e))?;
        step();
        if let Some(remade) = &self.remade {
            remade.write().map_err(|e| Error::io(format!("writing {}", remade.path.display()), e))?;
            sync_dir(&dir)?;
            step();
        }
        // The newest first: a crash must not leave a log that only seems to begin later.
        let stays = self.remade.as_ref().map(|remade| &remade.path);
        for path in self.leaving.iter().rev().filter(|path| Some(*path) != stays) {
            fs::remove_file(path).map_err(|e| Error::io("removing a segment that was set aside", e))?;
            sync_dir(&dir)?;
            step();
        }
        Ok(())
    }
}

impl Remade {
    /// The segment that begins with the entry `first`, of these bytes of another: the checks of their headers hold as they are.
    fn of(source: &Segment, first: u64, begin: u64, end: u64, dir: &Path) -> Remade {
        // Whatever is behind the entries may be those of another segment: who has lost its header does not say.
        let version = if source.version >= VERSION { VERSION_RECYCLED } else { source.version };
        let base = base_for(version, first, source.salt);
        let header = segment_header(first, base, version);
        Remade { from: source.path.clone(), begin, end, header, path: segment_path(dir, first) }
    }

    /// A new file: that of the old segment may have a name among storage's files.
    fn write(&self) -> std::io::Result<()> {
        // If a crash leaves it, the next start removes it with the spare files.
        let next = self.path.with_extension("spare");
        let mut from = File::open(&self.from)?;
        from.seek(SeekFrom::Start(self.begin))?;
        let mut file = File::create(&next)?;
        file.write_all(&self.header)?;
        std::io::copy(&mut from.take(self.end - self.begin), &mut file)?;
        file.sync_all()?;
        fs::rename(&next, &self.path)
    }
}

/// What can be read behind the damage.
#[derive(Default)]
struct Behind {
    /// In which segment the first entry is, where, and its index.
    first: Option<(usize, u64, u64)>,
    /// Which is the next that is missing.
    gap: Option<u64>,
    last: Option<OpTime>,
}

impl Behind {
    fn find(segments: &[Segment], at: usize, damage: &Damage) -> Result<Behind> {
        let mut found = Behind::default();
        let mut least = damage.entry;
        for (place, segment) in segments.iter().enumerate().skip(at) {
            let mut scanner = Scanner::of(segment)?;
            let mut from =
                if place == at { damage.offset.max(SEGMENT_HEADER_LEN) } else { SEGMENT_HEADER_LEN };
            while let Some((offset, header, end)) = scanner.next_entry(from, least)? {
                found.first.get_or_insert((place, offset, header.at.index));
                if found.last.is_some_and(|last| last.index + 1 < header.at.index) {
                    found.gap.get_or_insert(least);
                }
                found.last = Some(header.at);
                (from, least) = (end, header.at.index + 1);
            }
        }
        Ok(found)
    }
}

/// The last entry before the damage, in the last of these segments or before it; what is applied if the log has none.
fn last_before(segments: &[Segment], damage: &Damage, applied: OpTime) -> Result<OpTime> {
    let mut last = applied;
    for segment in segments.iter().rev().take(2).rev() {
        let mut scanner = Scanner::of(segment)?;
        while let Some((header, end)) = scanner.entry_at(scanner.offset)?
            && header.at.index < damage.entry
        {
            last = header.at;
            scanner.offset = end;
        }
    }
    Ok(last)
}

/// Gives a segment's file a name in this folder as well, or copies it where that cannot be.
fn set_aside(path: &Path, folder: &Path) -> std::io::Result<()> {
    let Some(name) = path.file_name() else { return Ok(()) };
    let to = folder.join(name);
    if fs::hard_link(path, &to).is_ok() {
        return Ok(());
    }
    fs::copy(path, &to)?;
    File::open(&to)?.sync_all()
}
