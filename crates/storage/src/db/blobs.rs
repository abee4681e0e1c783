//! Which large values compactions move out of RocksDB's blob files, so that what nobody wants in these gives back its room.
//!
//! A blob file goes when nothing in it is wanted. Compactions move what is wanted out of a part of the files, the oldest; one is begun for that
//! alone where enough of these is garbage. (RocksDB's `blob_garbage_collection_age_cutoff` and `_force_threshold`.)

/// As a rule: a part of the files, and of what is in them.
const PART: f64 = 0.25;
const FORCE: f64 = 0.5;

/// Where room is scarce.
const FORCE_IF_SCARCE: f64 = 0.05;

/// Why values are moved.
#[derive(Clone, Copy)]
pub(crate) enum Reason {
    /// Where it is worth it. Else compactions would read and write again what has only been loaded.
    Garbage,
    /// Somebody wants it.
    Asked,
    /// Room on the disk is scarce, and what is moved at a time may take so much, or twice that, before it gives back any.
    Scarce { room: u64 },
}

/// What blob files hold.
#[derive(Clone, Copy, Default)]
pub(super) struct Blobs {
    pub files: u64,
    pub bytes: u64,
    pub garbage: u64,
}

/// What RocksDB was told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Moves {
    pub on: bool,
    pub part: f64,
    pub force: f64,
}

impl Default for Moves {
    fn default() -> Moves {
        Moves { on: false, part: PART, force: FORCE }
    }
}

impl Moves {
    /// What it should be told now.
    pub fn next(self, blobs: Blobs, reason: Reason) -> Moves {
        let Blobs { files, bytes, garbage } = blobs;
        let least = if self.on { bytes / 10 } else { bytes / 5 };
        match reason {
            Reason::Garbage => Moves { on: garbage > 0 && garbage >= least, ..Moves::default() },
            Reason::Asked => Moves { on: true, ..Moves::default() },
            // Files that are too large for that are left as they are.
            Reason::Scarce { room } if garbage > 0 && bytes <= room.saturating_mul(4 * files) => {
                let fit = (room as f64 / bytes as f64 * files as f64).floor().max(1.0);
                let now = (self.part * files as f64).floor();
                // Each change is one file more, and the number of files changes all the time.
                let does = self.force == FORCE_IF_SCARCE && now >= 1.0 && now <= 2.0 * fit;
                let part = if does { self.part } else { (fit + 0.5) / files as f64 };
                Moves { on: true, part: part.min(1.0), force: FORCE_IF_SCARCE }
            }
            Reason::Scarce { .. } => Moves { on: false, ..self },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blobs(files: u64, bytes: u64, garbage: u64) -> Blobs {
        Blobs { files, bytes, garbage }
    }

    #[test]
    fn what_was_only_loaded_is_not_moved() {
        let on = |moves: Moves, garbage| moves.next(blobs(10, 1000, garbage), Reason::Garbage).on;
        let moving = Moves { on: true, ..Moves::default() };
        assert_eq!([0, 199, 200].map(|garbage| on(Moves::default(), garbage)), [false, false, true]);
        assert_eq!([99, 100].map(|garbage| on(moving, garbage)), [false, true]);
        assert!(Moves::default().next(blobs(10, 1000, 0), Reason::Asked).on);
    }

    #[test]
    fn where_room_is_scarce_no_more_is_moved_than_fits() {
        let scarce = |moves: Moves, files, room| moves.next(blobs(files, 1000, 10), Reason::Scarce { room });
        let first = scarce(Moves::default(), 100, 30);
        let moved = |moves: Moves, files: u64| (moves.part * files as f64).floor();
        assert_eq!((first.on, moved(first, 100)), (true, 3.0));
        assert_eq!(scarce(first, 90, 30), first, "it still does");
        assert_eq!(scarce(first, 20, 30).part, 1.5 / 20.0, "it would move none");
        assert_eq!(moved(scarce(first, 400, 10), 400), 4.0, "too many for now");
        assert_eq!(moved(scarce(Moves::default(), 1, 250), 1), 1.0);
        assert!(!scarce(Moves::default(), 1, 249).on, "four times the room, and more");
        assert!(!Moves::default().next(blobs(9, 1000, 0), Reason::Scarce { room: 30 }).on);
        assert_eq!(
            first.next(blobs(100, 1000, 500), Reason::Garbage),
            Moves { on: true, ..Moves::default() }
        );
    }
}
