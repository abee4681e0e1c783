//! Memory for messages under way: requests that arrive, wait for the rest of themselves or are worked on, and replies that
//! their clients do not take.
//!
//! What all of them have together is limited. Who needs more room than there is waits in a queue, and does not read
//! meanwhile, so its client waits, too. Large steps are taken ([`wanted`]), so that room goes to few messages that come to
//! their end rather than to many of which each has a part; and one at a time goes on without room, so that these cannot
//! wait for each other for ever. Small messages have a quarter of the room for themselves, so that they need not wait behind large ones.
//! Who comes first is first, but for users who have much of the room ([`queue`]).
//! Where room is short, who keeps it and does nothing for it, or little lately, loses its connection after a second or two instead
//! of half a minute.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sheaf_meter::{Part, Pressure, Process};

use self::queue::{Ask, Queue, Room};

mod queue;

/// Bytes that every connection may have without asking.
pub const FREE_BYTES: usize = 64 * 1024;

/// A message that needs more than that asks for so much, and only then for all of itself.
const FIRST_STEP_BYTES: usize = 8 << 20;

/// Messages up to this length have room of their own...
const SMALL_BYTES: u64 = 1 << 20;

/// ...of which there is one part in so many.
const SMALL_PART: u64 = 4;

/// What room is counted in.
const UNIT: u64 = 1024;

/// How long a message may stand still, and how long one that is too slow is borne with in any case.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(60));

/// [`PATIENCE`] where others need the room.
const PRESSED_PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(2));

/// Bytes a second that a message must come to in the end, and all the time where others need the room.
const SLOWEST: u64 = 64 * 1024;

/// How long a connection waits for room.
const ROOM_PATIENCE: Duration = Duration::from_secs(60);

/// How long it waits while memory is short for another reason. Then it goes on: what others wait for may be its own message.
const SHORTAGE_PATIENCE: Duration = Duration::from_secs(2);

/// The room that a message of this length asks for when its buffer is to have so many bytes.
pub fn wanted(buffer: usize, length: usize) -> usize {
    if buffer <= FREE_BYTES {
        buffer
    } else if buffer <= FIRST_STEP_BYTES {
        length.min(FIRST_STEP_BYTES)
    } else {
        length
    }
}

/// The room of all messages in one direction.
pub struct Buffers {
    /// What messages have. It belongs to the memory of all that clients do.
    messages: Part,
    limit: u64,
    waiting: AtomicU64,
    queue: Queue,
}

impl Buffers {
    /// Room for so many bytes of what `process` counts.
    pub fn new(process: &Arc<Process>, limit: u64) -> Arc<Self> {
        Self::with(process, limit - limit / SMALL_PART, limit / SMALL_PART)
    }

    /// With so many bytes for all, and so many for small messages.
    fn with(process: &Arc<Process>, room: u64, small: u64) -> Arc<Self> {
        Arc::new(Buffers {
            messages: Part::of(process),
            limit: room + small,
            waiting: AtomicU64::new(0),
            queue: Queue::new(room / UNIT, small / UNIT),
        })
    }

    /// The node shuts down: nobody waits for room any more, or gets any.
    pub fn end(&self) {
        self.queue.close();
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.messages.used()
    }

    /// Whether room is short.
    pub fn is_pressed(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
            || self.used() > self.limit
            || self.messages.process().pressure() >= Pressure::High
    }

    /// Whether a message has stood still for too long, or is too slow by far.
    pub fn is_stuck(&self, pace: &Pace) -> bool {
        let pressed = self.is_pressed();
        if pressed && pace.was_slow {
            return true;
        }
        let (still, slow) = if pressed { PRESSED_PATIENCE } else { PATIENCE };
        let in_all = slow + Duration::from_secs(pace.filled as u64 / SLOWEST);
        pace.moved.elapsed() >= still || pace.began.elapsed() >= in_all
    }

    /// Whether a reply of which nothing has been taken since then keeps room that others need.
    pub fn is_kept_from_others(&self, since: Instant) -> bool {
        self.is_pressed() && since.elapsed() >= PRESSED_PATIENCE.0
    }
}

/// How a message comes.
pub struct Pace {
    began: Instant,
    /// When it last moved, and how much of it was there.
    moved: Instant,
    filled: usize,
    /// The same when its speed was last looked at.
    looked: Instant,
    filled_then: usize,
    /// Whether it was too slow from one look to the next.
    was_slow: bool,
}

impl Pace {
    /// It begins with so many bytes.
    pub fn new(now: Instant, filled: usize) -> Pace {
        Pace { began: now, moved: now, filled, looked: now, filled_then: filled, was_slow: false }
    }

    /// So many bytes are there.
    pub fn moves(&mut self, now: Instant, filled: usize) {
        (self.moved, self.filled) = (now, filled);
        self.look(now);
    }

    /// Looks how fast it is, now and then.
    pub fn look(&mut self, now: Instant) {
        let time = now.saturating_duration_since(self.looked);
        if time >= PRESSED_PATIENCE.1 {
            let least = SLOWEST as f64 * time.as_secs_f64();
            self.was_slow = ((self.filled - self.filled_then) as f64) < least;
            (self.looked, self.filled_then) = (now, self.filled);
        }
    }

    /// It was not read from for so long.
    pub fn has_waited(&mut self, time: Duration) {
        self.began += time;
        self.looked += time;
    }
}

/// What one connection has of the room.
pub struct Claim {
    buffers: Arc<Buffers>,
    bytes: u64,
    room: Option<Room>,
    /// Whose that is, until it is given back.
    owner: u64,
}

impl Claim {
    /// Nothing yet.
    pub fn on(buffers: &Arc<Buffers>) -> Self {
        Claim { buffers: buffers.clone(), bytes: 0, room: None, owner: 0 }
    }

    /// Counts so many bytes, whether there is room or not: they are there already.
    pub fn count(&mut self, bytes: usize) {
        self.buffers.messages.change(self.bytes, bytes as u64);
        self.bytes = bytes as u64;
    }

    /// Gives back all but so many units.
    fn keep(&mut self, units: u64) {
        let queue = &self.buffers.queue;
        match self.room {
            Some(Room::Small(had)) if units > 0 => {
                queue.give_back(self.owner, Room::Small(had - units));
                self.room = Some(Room::Small(units));
            }
            Some(Room::Common(had)) if units > 0 => {
                queue.give_back(self.owner, Room::Common(had - units));
                self.room = Some(Room::Common(units));
            }
            // Who may go on without room may do so until it is through.
            Some(Room::Overdraft) if units > 0 => {}
            Some(room) => {
                queue.give_back(self.owner, room);
                self.room = None;
            }
            None => {}
        }
    }

    /// Waits until there is room for a buffer of this size, for a user; says how long that took. `None`: too long.
    pub async fn room(&mut self, bytes: usize, owner: impl FnOnce() -> u64) -> Option<Duration> {
        let counted = bytes.saturating_sub(FREE_BYTES);
        if counted as u64 == self.bytes {
            return Some(Duration::ZERO);
        }
        let units = (counted as u64).div_ceil(UNIT);
        let have = match self.room {
            Some(Room::Small(units) | Room::Common(units)) => units,
            Some(Room::Overdraft) => u64::MAX,
            None => 0,
        };
        let mut waited = Duration::ZERO;
        if units <= have {
            self.keep(units);
        } else {
            let owner = if self.room.is_some() { self.owner } else { owner() };
            waited = self.calm().await + self.more(units, owner).await?;
        }
        self.count(counted);
        Some(waited)
    }

    /// Waits a while, as long as memory is so short that operations are ended for it.
    async fn calm(&self) -> Duration {
        let process = self.buffers.messages.process();
        if process.pressure() < Pressure::Higher {
            return Duration::ZERO;
        }
        let began = Instant::now();
        while process.pressure() >= Pressure::Higher
            && !process.is_ending()
            && began.elapsed() < SHORTAGE_PATIENCE
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        began.elapsed()
    }

    /// Waits until it has so many units in all.
    async fn more(&mut self, units: u64, owner: u64) -> Option<Duration> {
        let buffers = self.buffers.clone();
        let small = units * UNIT <= SMALL_BYTES && !matches!(self.room, Some(Room::Common(_)));
        let common = match self.room {
            Some(Room::Common(have)) => units - have,
            _ => units,
        };
        let began = Instant::now();
        let mut place = match buffers.queue.ask(Ask { owner, common, small: small.then_some(units) })? {
            Ok(room) => {
                self.add(room, owner);
                return Some(Duration::ZERO);
            }
            Err(place) => place,
        };
        buffers.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&buffers);
        let room = tokio::time::timeout(ROOM_PATIENCE, place.wait()).await.ok()??;
        self.add(room, owner);
        Some(began.elapsed())
    }

    /// Room that comes to what it has; what it had of another kind it gives back.
    fn add(&mut self, room: Room, owner: u64) {
        self.room = Some(match (self.room, room) {
            (Some(Room::Common(had)), Room::Common(more)) => Room::Common(had + more),
            (Some(had), room) => {
                self.buffers.queue.give_back(owner, had);
                room
            }
            (None, room) => room,
        });
        self.owner = owner;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.keep(0);
        self.count(0);
    }
}

struct Waiting<'b>(&'b Buffers);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGA: usize = 1 << 20;

    fn buffers(limit: u64) -> Arc<Buffers> {
        Buffers::with(&Process::new(1 << 40, 1 << 40), limit, 0)
    }

    async fn until_waiting(buffers: &Buffers, count: u64) {
        while buffers.waiting.load(Ordering::Relaxed) < count {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn small_ones_are_free_and_one_goes_on_without_room() {
        let buffers = buffers(MEGA as u64);
        let [mut first, mut second, mut third, mut small] = [(); 4].map(|()| Claim::on(&buffers));
        first.room(FREE_BYTES + MEGA, || 0).await.unwrap();
        small.room(FREE_BYTES, || 0).await.unwrap();
        assert_eq!((buffers.used(), buffers.is_pressed()), (MEGA as u64, false));
        // Nobody gives anything back: it must not wait for ever.
        second.room(FREE_BYTES + MEGA, || 0).await.unwrap();
        assert!(buffers.is_pressed());
        let waiting = tokio::spawn(async move { third.room(FREE_BYTES + MEGA, || 0).await.map(|_| third) });
        until_waiting(&buffers, 1).await;
        // Who may go on without room may do so until it is through.
        second.room(50 * MEGA, || 0).await.unwrap();
        drop(second);
        let third = waiting.await.unwrap().unwrap();
        drop((first, third, small));
        assert_eq!((buffers.used(), buffers.is_pressed()), (0, false));
        assert_eq!(buffers.queue.free().0 * UNIT, MEGA as u64);
    }

    #[tokio::test]
    async fn room_that_comes_back_goes_to_who_has_waited_longest() {
        let buffers = buffers(MEGA as u64);
        let [mut first, mut second, mut third, mut fourth] = [(); 4].map(|()| Claim::on(&buffers));
        first.room(FREE_BYTES + MEGA, || 0).await.unwrap();
        second.room(FREE_BYTES + 1, || 0).await.unwrap();
        let long = tokio::spawn(async move { third.room(FREE_BYTES + MEGA, || 0).await.map(|_| third) });
        until_waiting(&buffers, 1).await;
        let short = tokio::spawn(async move { fourth.room(FREE_BYTES + 1, || 0).await.map(|_| fourth) });
        until_waiting(&buffers, 2).await;
        first.room(FREE_BYTES + MEGA / 2, || 0).await.unwrap();
        tokio::task::yield_now().await;
        assert!(!long.is_finished() && !short.is_finished());
        drop(first);
        let third = long.await.unwrap().unwrap();
        assert!(!short.is_finished());
        drop(second);
        drop((third, short.await.unwrap().unwrap()));
        assert_eq!(buffers.used(), 0);
    }

    #[tokio::test]
    async fn nobody_waits_beyond_the_end() {
        let buffers = buffers(MEGA as u64);
        let [mut first, mut second, mut third] = [(); 3].map(|()| Claim::on(&buffers));
        first.room(FREE_BYTES + MEGA, || 0).await.unwrap();
        second.room(FREE_BYTES + MEGA, || 0).await.unwrap();
        let waiting = tokio::spawn(async move { third.room(FREE_BYTES + MEGA, || 0).await });
        until_waiting(&buffers, 1).await;
        buffers.end();
        assert_eq!(waiting.await.unwrap(), None);
        assert_eq!(Claim::on(&buffers).room(FREE_BYTES + MEGA, || 0).await, None);
        drop((first, second));
        assert_eq!(buffers.used(), 0);
    }

    #[tokio::test]
    async fn small_ones_do_not_wait_behind_large_ones() {
        let buffers = Buffers::with(&Process::new(1 << 40, 1 << 40), 10 * MEGA as u64, 2 * MEGA as u64);
        let [mut first, mut second, mut third] = [(); 3].map(|()| Claim::on(&buffers));
        let mut small = [(); 4].map(|()| Claim::on(&buffers));
        first.room(FREE_BYTES + 10 * MEGA, || 0).await.unwrap();
        second.room(FREE_BYTES + 8 * MEGA, || 0).await.unwrap();
        let large = tokio::spawn(async move { third.room(FREE_BYTES + 8 * MEGA, || 0).await.map(|_| third) });
        until_waiting(&buffers, 1).await;
        for one in &mut small {
            assert_eq!(one.room(FREE_BYTES + MEGA / 2, || 0).await, Some(Duration::ZERO));
        }
        // One that turns out to be large waits like others, and gives its room back when it has got some.
        let [mut grows, others @ ..] = small;
        let grown = tokio::spawn(async move { grows.room(FREE_BYTES + 2 * MEGA, || 0).await.map(|_| grows) });
        until_waiting(&buffers, 2).await;
        drop(first);
        let third = large.await.unwrap().unwrap();
        let grows = grown.await.unwrap().unwrap();
        assert_eq!(buffers.queue.free().1 * UNIT, MEGA as u64 / 2);
        drop((second, third, grows, others));
        assert_eq!((buffers.used(), buffers.is_pressed()), (0, false));
        assert_eq!(buffers.queue.free().0 * UNIT, 10 * MEGA as u64);
    }

    #[tokio::test]
    async fn nobody_waits_behind_one_user_s_many_messages() {
        let buffers = Buffers::with(&Process::new(1 << 40, 1 << 40), 24 * MEGA as u64, 2 * MEGA as u64);
        let ask = |owner, bytes| {
            let mut claim = Claim::on(&buffers);
            tokio::spawn(async move { claim.room(FREE_BYTES + bytes, || owner).await.map(|_| claim) })
        };
        // Three have room, one goes on without, and six wait.
        let mut given = Vec::new();
        for _ in 0..4 {
            given.push(ask(7, 8 * MEGA).await.unwrap().unwrap());
        }
        let many: Vec<_> = (0..6).map(|_| ask(7, 8 * MEGA)).collect();
        until_waiting(&buffers, 6).await;
        let other = ask(8, 2 * MEGA);
        until_waiting(&buffers, 7).await;
        drop(given.pop());
        let other = other.await.unwrap().unwrap();
        assert!(many.iter().all(|one| !one.is_finished()), "the other went first");
        drop((given, other));
        for one in many {
            drop(one.await.unwrap().unwrap());
        }
        assert_eq!((buffers.used(), buffers.queue.free()), (0, (24 * 1024, 2 * 1024)));
    }

    #[tokio::test]
    async fn who_leaves_the_queue_takes_nothing_along() {
        let buffers = buffers(MEGA as u64);
        let [mut first, mut second, mut third] = [(); 3].map(|()| Claim::on(&buffers));
        first.room(FREE_BYTES + MEGA, || 1).await.unwrap();
        second.room(FREE_BYTES + MEGA, || 2).await.unwrap();
        let waiting = tokio::spawn(async move { third.room(FREE_BYTES + MEGA, || 3).await.map(|_| third) });
        until_waiting(&buffers, 1).await;
        // It is given room at the same time as it ends.
        drop(first);
        waiting.abort();
        assert!(waiting.await.is_err());
        assert_eq!((buffers.queue.free(), buffers.is_pressed()), ((1024, 0), false));
        drop(second);
    }

    #[test]
    fn what_stands_still_is_stuck_and_sooner_where_room_is_short() {
        let buffers = buffers(10);
        let now = Instant::now();
        let ago = |seconds| {
            now.checked_sub(Duration::from_secs(seconds)).expect("the machine has been up for a while")
        };
        let pace = Pace::new(ago(5), 1000);
        assert!(!buffers.is_stuck(&pace));
        let mut claim = Claim::on(&buffers);
        claim.count(11);
        assert!(buffers.is_stuck(&pace));
        let mut pace = Pace::new(ago(5), 1000);
        pace.moves(now, 2000);
        assert!(buffers.is_stuck(&pace), "it moves, but hardly");
        let mut pace = Pace::new(ago(5), 1000);
        pace.moves(now, MEGA);
        assert!(!buffers.is_stuck(&pace));
        // Much at first does not pay for the rest.
        let mut pace = Pace::new(ago(6), 1000);
        pace.moves(ago(4), 20 * MEGA);
        pace.moves(now, 20 * MEGA + 100);
        assert!(buffers.is_stuck(&pace));
        claim.count(0);
        assert!(!buffers.is_stuck(&pace), "nobody needs its room");
    }

    #[tokio::test]
    async fn messages_belong_to_the_memory_of_all_and_wait_while_it_is_short() {
        let process = Process::new(1 << 40, 1 << 40);
        let buffers = Buffers::with(&process, 10 * MEGA as u64, 0);
        let mut claim = Claim::on(&buffers);
        claim.room(FREE_BYTES + MEGA, || 0).await.unwrap();
        assert_eq!(process.used(), MEGA as u64);
        process.set_pressure(Pressure::Critical);
        assert!(buffers.is_pressed());
        // What gives back need not wait, nor who stays within what is free.
        assert_eq!(claim.room(FREE_BYTES + MEGA / 2, || 0).await, Some(Duration::ZERO));
        let waiting = tokio::spawn(async move { claim.room(FREE_BYTES + MEGA, || 0).await.map(|_| claim) });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        process.set_pressure(Pressure::None);
        drop(waiting.await.unwrap().unwrap());
        assert_eq!(process.used(), 0);
    }

    #[test]
    fn room_is_asked_for_in_large_steps() {
        assert_eq!(wanted(4096, 48 * MEGA), 4096);
        assert_eq!(wanted(FREE_BYTES + 1, 200_000), 200_000);
        assert_eq!(wanted(FREE_BYTES + 1, 48 * MEGA), FIRST_STEP_BYTES);
        assert_eq!(wanted(FIRST_STEP_BYTES + 1, 48 * MEGA), 48 * MEGA);
    }
}
