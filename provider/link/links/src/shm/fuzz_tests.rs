//! What a peer leaves in shared memory and says on a socket, drawn from bytes. Seeds are in `__fuzz__`;
//! plain `cargo test` runs these and so many random ones, `cargo bolero` searches for more.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use ipc::Mapping;
use ipc::memfd::{self, Writers};
use ipc::pieces;

use super::MIN_RING;
use crate::shm::channel::allowance::Allowance;
use crate::shm::channel::producer::Producer;
use crate::shm::channel::ring::{Broken, Consumer, Mem as _, max_frame};
use crate::shm::channel::segment::{CONTROL, Segment, size as size_of_channel};
use crate::shm::memory::mr_table::{PeerMrTable, places};

thread_local! {
    static SEGMENT: (Segment, OwnedFd) = Segment::create(MIN_RING).unwrap();
    static BOARD: (Mapping, OwnedFd) = {
        let fd = memfd::create(c"strait", crate::shm::memory::mr_table::SIZE, Writers::UntilSealed).unwrap();
        let memory = Mapping::new(&fd, crate::shm::memory::mr_table::SIZE, None).unwrap();
        memfd::seal(&fd);
        (memory, fd)
    };
}

/// A segment as the other side has it, with these bytes at the front of its ring, and zeros behind.
fn adopted(bytes: &[u8]) -> Segment {
    SEGMENT.with(|(ours, fd)| {
        let mut ring = vec![0; MIN_RING];
        let n = bytes.len().min(MIN_RING);
        ring[..n].copy_from_slice(&bytes[..n]);
        // SAFETY: all of the ring, and as many bytes; nothing else reads it now.
        unsafe { ours.put(0, ring.as_ptr(), MIN_RING) };
        ours.head().store(0, Relaxed);
        Segment::adopt(fd.as_fd(), MIN_RING).unwrap()
    })
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(4 * at..4 * at + 4).map_or(0, |b| u32::from_le_bytes(b.try_into().unwrap()))
}

/// Reads frames; more bytes change commit words under the reader.
#[test]
fn ring() {
    bolero::check!().with_max_len(MIN_RING).for_each(|bytes: &[u8]| {
        let segment = adopted(bytes);
        let lines = segment.lines();
        let mut rx = Consumer::new(segment);
        let mut out = vec![0u8; max_frame(lines) + 64];
        for step in 0..2 * lines as usize {
            let change = word(bytes, step * 7);
            match rx.peek() {
                Ok(Some(len)) => {
                    assert!(len <= max_frame(lines));
                    // Whatever it says now, this is what was read.
                    rx.mem().commit(change % lines).store(change.rotate_left(7), Relaxed);
                    assert_eq!(rx.read(0, &mut out), len);
                    let off = change as usize % (len + 9);
                    assert_eq!(rx.read(off, &mut out), len.saturating_sub(off));
                    assert_eq!(rx.first::<20>().is_some(), len >= 20);
                    let parts = rx.stretches(off, change as usize % out.len());
                    assert!(parts.iter().all(|(at, n)| at + n <= MIN_RING), "{parts:?}");
                    rx.advance();
                }
                Ok(None) => rx.mem().commit(change % lines).store(change >> 18, Relaxed),
                Err(Broken) => return,
            }
        }
    });
}

/// Sends frames to a receiver that publishes any position: one that is possible is taken, no other.
#[test]
fn producer() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let segment = adopted(&[]);
        let lines = segment.lines();
        let mut tx = Producer::new(segment, 0, Allowance::new(u32::MAX));
        for step in 0..64 {
            let (says, len) = (word(bytes, 2 * step), word(bytes, 2 * step + 1));
            let (head, pos) = tx.known();
            let under_way = pos.wrapping_sub(head);
            let says = match says % 8 {
                0 => says >> 3,
                1 => pos,
                _ => head.wrapping_add((says >> 3) % (under_way + 1)),
            };
            tx.mem().head().store(says, Relaxed);
            let possible = says.wrapping_sub(head) <= under_way;
            let len = len as usize % (max_frame(lines) + 1);
            let room = tx.reserve(len);
            let known = tx.known().0;
            match room {
                Err(Broken) => return assert!(!possible, "{says}"),
                Ok(_) => assert!(known == head || known == says && possible, "{says}"),
            }
            if room == Ok(true) {
                // SAFETY: so many bytes were found to have room.
                unsafe { tx.write(0, &vec![1; len]) };
                tx.publish(len);
            } else {
                // It has looked, and the receiver has not taken everything.
                assert!(known == says && says != pos, "{says}");
            }
        }
    });
}

/// Word `at` of a table.
fn word_of(table: &Mapping, at: usize) -> &AtomicU32 {
    assert!(4 * at + 4 <= crate::shm::memory::mr_table::SIZE);
    // SAFETY: inside by the line above, and a multiple of 4.
    unsafe { table.word(4 * at) }
}

/// Looks for keys among noise, and among entries that are nearly theirs.
#[test]
fn board() {
    bolero::check!().with_max_len(crate::shm::memory::mr_table::SIZE).for_each(|bytes: &[u8]| {
        BOARD.with(|(ours, fd)| {
            for at in 0..crate::shm::memory::mr_table::SIZE / 4 {
                word_of(ours, at).store(word(bytes, at), Relaxed);
            }
            let keys = [0, 1, 7, u64::MAX, u64::from(word(bytes, 1)), u64::from(word(bytes, 9)) << 32];
            let entry = |place: u32| (0..8).map(move |at| word_of(ours, 8 * place as usize + at));
            for edit in bytes.chunks_exact(12).take(40) {
                let key = keys[usize::from(edit[0]) % keys.len()] ^ u64::from(edit[1] & 1) << (edit[2] % 64);
                let place = places(key).nth(usize::from(edit[3]) % 16).unwrap();
                let body = [
                    u32::from(edit[4] > 250),
                    u32::from(edit[5]) | 3,
                    key as u32,
                    (key >> 32) as u32,
                    edit[6].into(),
                    edit[7].into(),
                    edit[8].into(),
                    edit[9].into(),
                ];
                entry(place).zip(body).for_each(|(word, v)| word.store(v, Relaxed));
            }
            let view = PeerMrTable::adopt(fd).unwrap();
            for key in keys {
                let Some((found, ticket)) = view.find(key) else { continue };
                let halves = |v: u64| [v as u32, (v >> 32) as u32];
                let want = [halves(key), halves(found.addr), halves(found.len)].concat();
                let shown = |place: u32| {
                    let now: Vec<u32> = entry(place).map(|w| w.load(Relaxed)).collect();
                    now[0] % 2 == 0 && now[1] & 3 == 3 && now[2..] == want
                };
                assert!(found.key == key && places(key).any(shown) && view.shows(ticket), "{found:?}");
            }
        });
    });
}

#[test]
fn pieces() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let segment = adopted(&[]);
        let wide = |at| u64::from(word(bytes, at)) << 32 | u64::from(word(bytes, at + 1));
        let (slot, generation, of) = (word(bytes, 0) as u16, wide(0) >> 16, word(bytes, 2) as u16);
        let counter = segment.pieces(slot);
        for step in 0..20 {
            counter.store(wide(step), Relaxed);
            assert!(pieces::claim(counter, generation, of).is_none_or(|piece| piece < of));
        }
    });
}

/// Segments of any size and with any seals.
#[test]
fn segments() {
    use std::os::fd::{AsRawFd, FromRawFd};
    bolero::check!().with_max_len(64).for_each(|bytes: &[u8]| {
        let sizes = [
            0,
            1,
            CONTROL,
            size_of_channel(MIN_RING),
            size_of_channel(2 * MIN_RING),
            size_of_channel(MIN_RING - 4096),
            1 << 30,
        ];
        let size = sizes[word(bytes, 0) as usize % sizes.len()];
        let says = [0, MIN_RING, MIN_RING + 1, usize::MAX, 1 << 30, word(bytes, 1) as usize]
            .get(word(bytes, 2) as usize % 12)
            .copied()
            .unwrap_or(size.wrapping_sub(size_of_channel(0)));
        // Often all that there must be but one.
        let add = word(bytes, 3) & 31;
        let add = if word(bytes, 4) % 2 == 0 { add } else { (7 | add) & !8 & !(1 << (add % 8)) };
        // SAFETY: a C string, and numbers; the descriptor is new.
        let fd = unsafe {
            let fd = libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC);
            libc::ftruncate(fd, size as i64);
            libc::fcntl(fd, libc::F_ADD_SEALS, add as i32);
            OwnedFd::from_raw_fd(fd)
        };
        // SAFETY: F_GET_SEALS touches no memory of ours.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        let whole = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        if Segment::adopt(fd.as_fd(), says).is_ok() {
            assert!(seals & whole == whole && size == size_of_channel(says), "{size} {says} {seals:x}");
        }
    });
}
