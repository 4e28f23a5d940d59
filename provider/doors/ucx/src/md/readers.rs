//! Reader slots in peers' revocation tables ([`link::RevocationTable`], here boards for short): an access to
//! memory that its owner may take back is announced in one, and a slot is for one access at a time.
//!
//! An access of the CPU ends before the call returns. So all of an interface's share one slot of each board,
//! which a key keeps ([`Reader`]). One of a device takes until the device is done, and has a slot of its own
//! ([`Held`]).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use link::{RevocationTable, WindowId, Windows};

use crate::md::region::Slot;

/// Most slots of one interface on one board for accesses that outlast a call: the board's are for all peers.
const MOST: usize = 32;

/// Before a board of which no slot was free is looked at again, which takes a look at all processes that have
/// one.
const AGAIN: Duration = Duration::from_secs(1);

/// An interface's reader slots. `P` is what it calls a peer.
#[derive(Debug)]
pub(crate) struct Readers<P> {
    /// Which interface's they are.
    id: u64,
    boards: HashMap<WindowId, TableReaders<P>>,
}

/// The slots of one revocation table.
#[derive(Debug)]
struct TableReaders<P> {
    table: RevocationTable,
    /// Which peers' memory was accessed with it. A process has one table for many slots, and may be several
    /// peers.
    peers: Vec<P>,
    /// For accesses that end before the call returns.
    shared: Option<Arc<Claimed>>,
    /// For the others: those that are free, and how many are not.
    free: Vec<u32>,
    held: usize,
    /// When none was free for `shared`.
    full: Option<Instant>,
}

impl<P: Copy + Eq> TableReaders<P> {
    fn new(table: RevocationTable) -> TableReaders<P> {
        TableReaders { table, peers: Vec::new(), shared: None, free: Vec::new(), held: 0, full: None }
    }

    #[inline]
    fn serves(&mut self, peer: P) {
        if !self.peers.contains(&peer) {
            self.peers.push(peer);
        }
    }
}

impl<P> Drop for TableReaders<P> {
    fn drop(&mut self) {
        // Nothing is under way with these.
        self.free.iter().for_each(|number| self.table.release(*number));
    }
}

/// A slot that is given back when neither an interface nor a key has it any more.
#[derive(Debug)]
struct Claimed {
    board: RevocationTable,
    number: u32,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.board.release(self.number);
    }
}

/// A slot for accesses that end before the call returns.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    board: RevocationTable,
    number: u32,
    id: u64,
    _claimed: Arc<Claimed>,
}

/// The slot of an access under way.
#[derive(Debug)]
pub(crate) struct Held {
    board: WindowId,
    number: u32,
}

/// Why an access cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoReader {
    /// The memory was taken back.
    Gone,
    /// All slots are in use.
    Full,
}

impl<P: Copy + Eq> Readers<P> {
    pub(crate) fn new() -> Readers<P> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Readers { id: NEXT.fetch_add(1, Relaxed), boards: HashMap::new() }
    }

    /// Whether a slot is one of these.
    #[inline]
    pub(crate) fn have(&self, reader: &Reader) -> bool {
        reader.id == self.id
    }

    /// The shared slot on the board in a window that is here, for memory of this peer's; `None`: the window
    /// is not. `Err`: no slot is free; or it is no board.
    pub(crate) fn shared(&mut self, id: WindowId, windows: &Windows, of: P) -> Result<Option<Reader>, ()> {
        let board = match self.boards.entry(id) {
            Entry::Occupied(board) => board.into_mut(),
            Entry::Vacant(place) => {
                let Some(window) = windows.find(id) else { return Ok(None) };
                place.insert(TableReaders::new(RevocationTable::new(window).ok_or(())?))
            }
        };
        board.serves(of);
        if board.shared.is_none() && board.full.is_none_or(|when| when.elapsed() > AGAIN) {
            let claimed = |number| Arc::new(Claimed { board: board.table.clone(), number });
            board.shared = board.table.claim().map(claimed);
            if board.shared.is_none() && board.full.replace(Instant::now()).is_none() {
                log::warn!("no reader slot is free on a peer's board: its memory is accessed by request");
            }
        }
        let claimed = board.shared.clone().ok_or(())?;
        let (number, id) = (claimed.number, self.id);
        Ok(Some(Reader { board: board.table.clone(), number, id, _claimed: claimed }))
    }

    /// A peer has ended, or is accessed no more: a board that served no other one is let go of. Keys that
    /// have a slot there keep it, and the mapping, until they are released.
    #[cold]
    pub(crate) fn ended(&mut self, peer: P, windows: &Windows) {
        let mut gone = Vec::new();
        self.boards.retain(|id, board| {
            board.peers.retain(|p| *p != peer);
            let used = !board.peers.is_empty() || board.held > 0;
            if !used {
                gone.push(*id);
            }
            used
        });
        gone.into_iter().for_each(|id| windows.unmap(id));
    }

    /// Begins an access to memory of this peer's that outlasts the call.
    pub(crate) fn enter(
        &mut self,
        (id, table): (WindowId, &RevocationTable),
        slot: Slot,
        of: P,
    ) -> Result<Held, NoReader> {
        let at = self.boards.entry(id).or_insert_with(|| TableReaders::new(table.clone()));
        at.serves(of);
        let number = match at.free.pop() {
            Some(number) => number,
            None if at.held >= MOST => return Err(NoReader::Full),
            None => at.table.claim().ok_or(NoReader::Full)?,
        };
        if !at.table.enter(number, slot.index, slot.generation) {
            at.free.push(number);
            return Err(NoReader::Gone);
        }
        at.held += 1;
        Ok(Held { board: id, number })
    }

    /// Such an access is over.
    pub(crate) fn leave(&mut self, held: Held) {
        if let Some(at) = self.boards.get_mut(&held.board) {
            at.table.leave(held.number);
            at.free.push(held.number);
            at.held -= 1;
        }
    }
}

impl Reader {
    /// Runs an access to memory with this slot, unless it was taken back.
    #[inline]
    pub(crate) fn access<T>(&self, slot: Slot, f: impl FnOnce() -> T) -> Option<T> {
        if !self.board.enter(self.number, slot.index, slot.generation) {
            return None;
        }
        let t = f();
        self.board.leave(self.number);
        Some(t)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_for_each_access_that_outlasts_a_call() {
        let windows = Windows::new().unwrap();
        let (id, window) = windows.create(RevocationTable::SIZE.next_multiple_of(4096), None).unwrap();
        let table = RevocationTable::new(window).unwrap();
        let slot = Slot { board: id.number as u32, index: 4, generation: 0 };
        let mut readers = Readers::new();
        let mut all: Vec<Held> = (0..MOST).map(|_| readers.enter((id, &table), slot, ()).unwrap()).collect();
        assert_eq!(readers.enter((id, &table), slot, ()).unwrap_err(), NoReader::Full);
        // One more for all that end at once.
        let shared = readers.shared(id, &windows, ()).unwrap().unwrap();
        assert_eq!(shared.access(slot, || 7), Some(7));
        // Memory is taken back when the last access is over.
        let last = all.pop().unwrap();
        all.into_iter().for_each(|held| readers.leave(held));
        assert!(!table.end(4, 0, Duration::from_millis(5)));
        readers.leave(last);
        assert!(table.end(4, 0, Duration::from_secs(60)));
        assert_eq!(readers.enter((id, &table), slot, ()).unwrap_err(), NoReader::Gone);
        assert_eq!(shared.access(slot, || 7), None);
        let next = readers.enter((id, &table), Slot { generation: 1, ..slot }, ()).unwrap();
        readers.leave(next);
        // They are given back, all of them.
        drop((readers, shared));
        assert!((0..=MOST as u32).all(|number| table.claim() == Some(number)));
    }

    #[test]
    fn a_full_board_is_looked_at_now_and_then() {
        let windows = Windows::new().unwrap();
        let (id, window) = windows.create(RevocationTable::SIZE.next_multiple_of(4096), None).unwrap();
        let table = RevocationTable::new(window).unwrap();
        while table.claim().is_some() {}
        let mut readers = Readers::new();
        assert!(readers.shared(id, &windows, ()).is_err());
        table.release(3);
        let mut looked = |when| {
            readers.boards.get_mut(&id).unwrap().full = Some(when);
            readers.shared(id, &windows, ()).ok().flatten().map(|reader| reader.number)
        };
        assert_eq!(looked(Instant::now() + 60 * AGAIN), None);
        assert_eq!(looked(Instant::now() - 2 * AGAIN), Some(3));
        // From then on there is one, whenever it was.
        assert_eq!(looked(Instant::now() + 60 * AGAIN), Some(3));
    }

    #[test]
    fn a_board_is_let_go_of_when_all_it_served_have_ended() {
        let windows = Windows::new().unwrap();
        let (id, window) = windows.create(RevocationTable::SIZE.next_multiple_of(4096), None).unwrap();
        let table = RevocationTable::new(window.clone()).unwrap();
        let slot = Slot { board: id.number as u32, index: 4, generation: 0 };
        let unused = Arc::strong_count(&window);
        let mut readers = Readers::new();
        let shared = readers.shared(id, &windows, 'a').unwrap().unwrap();
        assert!(readers.shared(id, &windows, 'b').unwrap().is_some());
        let held = readers.enter((id, &table), slot, 'c').unwrap();
        for peer in ['x', 'c', 'a', 'b'] {
            assert_eq!(readers.boards.len(), 1);
            readers.ended(peer, &windows);
        }
        // A copy is under way.
        assert_eq!(readers.boards.len(), 1);
        readers.leave(held);
        readers.ended('c', &windows);
        assert!(readers.boards.is_empty());
        // A key has its slot still.
        assert_eq!(shared.access(slot, || 7), Some(7));
        assert_eq!(table.claim(), Some(1));
        assert!(Arc::strong_count(&window) > unused);
        drop(shared);
        assert_eq!((table.claim(), Arc::strong_count(&window)), (Some(0), unused));
    }

    #[test]
    fn no_window_and_no_board() {
        let windows = Windows::new().unwrap();
        let mut readers = Readers::new();
        assert!(readers.shared(WindowId { maker: 1, number: 2 }, &windows, ()).unwrap().is_none());
        let (small, _) = windows.create(4096, None).unwrap();
        assert!(readers.shared(small, &windows, ()).is_err());
    }
}
