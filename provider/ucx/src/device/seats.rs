//! Seats on peers' boards, one for each copy of memory that may be taken back: a copy takes until the device
//! is done, and a seat is for one access at a time.

use std::collections::HashMap;

use link::{Hazards, WindowId};

use crate::region::Slot;

/// Most seats of one interface on one board: the board's are for all peers.
const MOST: usize = 32;

/// An interface's seats on one board.
#[derive(Debug)]
struct Board {
    hazards: Hazards,
    free: Vec<u32>,
    taken: usize,
}

/// An interface's seats.
#[derive(Debug, Default)]
pub(super) struct Seats(HashMap<WindowId, Board>);

/// An access under way.
#[derive(Debug)]
pub(super) struct Seat {
    board: WindowId,
    number: u32,
}

/// Why an access cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSeat {
    /// The memory was taken back.
    Gone,
    /// Others have all seats.
    Full,
}

impl Seats {
    /// Begins an access.
    pub(super) fn enter(&mut self, board: WindowId, hazards: &Hazards, slot: Slot) -> Result<Seat, NoSeat> {
        let at = self.0.entry(board).or_insert_with(|| Board {
            hazards: hazards.clone(),
            free: Vec::new(),
            taken: 0,
        });
        let number = match at.free.pop() {
            Some(number) => number,
            None if at.taken >= MOST => return Err(NoSeat::Full),
            None => at.hazards.claim().ok_or(NoSeat::Full)?,
        };
        if !at.hazards.enter(number, slot.index, slot.generation) {
            at.free.push(number);
            return Err(NoSeat::Gone);
        }
        at.taken += 1;
        Ok(Seat { board, number })
    }

    /// An access is over.
    pub(super) fn leave(&mut self, seat: Seat) {
        if let Some(at) = self.0.get_mut(&seat.board) {
            at.hazards.leave(seat.number);
            at.free.push(seat.number);
            at.taken -= 1;
        }
    }
}

impl Drop for Seats {
    fn drop(&mut self) {
        // Nothing is under way any more: copies have been waited for.
        for at in self.0.values() {
            at.free.iter().for_each(|number| at.hazards.release(*number));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use link::Windows;

    use super::*;

    #[test]
    fn a_seat_for_each_access() {
        let windows = Windows::new().unwrap();
        let (id, window) = windows.create(Hazards::SIZE.next_multiple_of(4096), None).unwrap();
        let hazards = Hazards::new(window).unwrap();
        let slot = Slot { board: id.number as u32, index: 4, generation: 0 };
        let mut seats = Seats::default();
        let mut all: Vec<Seat> = (0..MOST).map(|_| seats.enter(id, &hazards, slot).unwrap()).collect();
        assert_eq!(seats.enter(id, &hazards, slot).unwrap_err(), NoSeat::Full);
        // Whoever takes the memory back waits for the last one.
        let last = all.pop().unwrap();
        all.into_iter().for_each(|seat| seats.leave(seat));
        assert!(!hazards.end(4, 0, Duration::from_millis(5)));
        seats.leave(last);
        assert!(hazards.end(4, 0, Duration::from_secs(60)));
        assert_eq!(seats.enter(id, &hazards, slot).unwrap_err(), NoSeat::Gone);
        let next = seats.enter(id, &hazards, Slot { generation: 1, ..slot }).unwrap();
        seats.leave(next);
        // They are given back.
        drop(seats);
        assert_eq!(hazards.claim(), Some(0));
    }
}
