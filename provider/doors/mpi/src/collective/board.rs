//! The words that the ranks of a communicator share, and NCCL's communicator.
//!
//! The words are in a file of /dev/shm whose name each rank derives from what it knows by itself: the process
//! that started the ranks, the communicator, and all that the ranks have to have alike. So nothing is sent
//! to find each other, and a rank that is on another host, has other settings, or runs without this
//! library is never seen there. Until a rank has seen all others it posts host memory, and waits for none.

use core::ffi::c_int;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use device_ops::board::{Agreement, Disagreement, Kind, Outcome, STRIDE, SharedWords};
use device_ops::nccl::{Comm, Library as Nccl, NcclError, Rank, UniqueId, Vendor};
use device_ops::window::Window;
use device_ops::{Op, Type};
use ipc::Mapping;
use ipc::process::Name;

use super::file::NamedFile;
use super::marks::{CLOSED, FAILED, LEFT, Marks, PROCESS, process, word};
use super::messages::{Messages, Quiet};
use super::pair::{Context, Pair};
use crate::abi::{Abi, Handle};
use crate::library::{Library, pmpi};
use crate::stderr::say;

/// How long a call of NCCL's may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Polls without progress of the MPI, and between two searches for ranks that have ended.
const EAGER: u32 = 64;
const SEARCH: u32 = 1 << 14;
/// Whether a rank has seen all others in MPI_Init, or has given up.
const MET: usize = 24;
const MET_ALL: u64 = 1;
const ENDED: u64 = 2;
/// Its words of collectives that return a request.
const POSTED: usize = 32;
const FOUND: usize = 40;
/// Polls without sleeping between them, and the sleep after that many.
const POLLS: u32 = 2000;
const SLEEP: Duration = Duration::from_micros(50);
/// Between two looks for ranks that leave MPI_Init.
const PAUSE: Duration = Duration::from_micros(500);

/// One rank's side.
#[derive(Debug)]
pub(super) struct Side {
    memory: Arc<Mapping>,
    agreement: Agreement<SharedWords>,
    at: Rank,
    file: NamedFile,
    /// Whether all ranks were seen.
    all_here: bool,
    /// NCCL's communicator, and the number of the device that it is on.
    comm: Option<(Comm, i32)>,
    /// What the ranks' devices exchange messages by.
    messages: Option<Messages>,
    /// Of two ranks: by what they reduce in one kernel of each.
    pair: Option<Pair>,
    /// Whether this rank posts host memory from now on.
    is_failed: bool,
}

impl Side {
    /// Of the communicator of that name; `None` where there is no memory for it.
    pub(super) fn new(name: u128, at: Rank) -> Option<Side> {
        let (file, memory) = NamedFile::open(name, ((at.size + 1) * STRIDE).next_multiple_of(4096))?;
        let memory = Arc::new(memory);
        let words = SharedWords::new(memory.clone(), 0, at.size)?;
        let agreement = Agreement::new(words, at.rank)?;
        let (comm, messages, pair) = (None, None, None);
        let (all_here, is_failed) = (false, false);
        let board = Side { memory, agreement, at, file, all_here, comm, messages, pair, is_failed };
        // A process that has ended may have left its words.
        for word in [0, FAILED, MET, POSTED, FOUND, LEFT, CLOSED] {
            board.word(at.rank, word).store(0, Release);
        }
        let own = Name::own();
        let name = u64::from(own.process) << 32 | u64::from(own.namespace);
        board.word(at.rank, PROCESS).store(name, Release);
        Some(board)
    }

    fn word(&self, rank: usize, at: usize) -> &AtomicU64 {
        word(&self.memory, self.at.size, rank, at)
    }

    /// Whether this rank may post device memory: all ranks have come, and none has failed here.
    pub(super) fn is_usable(&mut self) -> bool {
        if !self.all_here {
            let own = Name::own().namespace;
            let is_here = |name: Name| name.namespace == own && own != 0 && !name.has_ended();
            let ranks = self.at.size;
            self.all_here = (0..ranks).all(|r| process(&self.memory, ranks, r).is_some_and(is_here));
            if self.all_here {
                self.unlink();
            }
        }
        if !self.is_failed && self.one_failed().is_some() {
            self.fail();
        }
        self.all_here && !self.is_failed
    }

    /// Waits until all ranks have come, for so long at most: whether they have. A rank comes by a collective
    /// too, and may need this one's progress for that.
    ///
    /// # Safety
    /// `comm` is the communicator.
    pub(super) unsafe fn meet(&mut self, abi: &Abi, comm: Handle, limit: Duration) -> bool {
        let (begin, mut polls) = (Instant::now(), 0);
        while !self.is_usable() && !self.is_failed {
            if begin.elapsed() > limit {
                return false;
            }
            // SAFETY: the caller's promise.
            unsafe { progress(&mut polls, abi, comm) };
        }
        !self.is_failed
    }

    /// Waits for ranks that leave MPI_Init with this one: whether each has seen all in time. Once all are
    /// seen the file has no name. The answer is the same at all ranks: each says whether it has seen all, and
    /// then waits for what those say that it has seen.
    ///
    /// # Safety
    /// All ranks that are seen do the same, of the communicator `comm`.
    pub(super) unsafe fn meet_in_init(&mut self, is_possible: bool, abi: &Abi, comm: Handle) -> bool {
        const LATEST: Duration = Duration::from_secs(1);
        let (begin, mut polls) = (Instant::now(), EAGER - 1);
        let mut pause = || {
            // SAFETY: the caller's promise.
            unsafe { progress(&mut polls, abi, comm) };
            polls = EAGER - 1;
            std::thread::sleep(PAUSE);
        };
        while is_possible && !self.is_usable() && begin.elapsed() < LATEST {
            pause();
        }
        let says = if is_possible && self.all_here { MET_ALL } else { ENDED };
        self.word(self.at.rank, MET).store(says, Release);
        if says == ENDED {
            return false;
        }
        let gone = |r: usize| process(&self.memory, self.at.size, r).is_none_or(Name::has_ended);
        (0..self.at.size).all(|rank| {
            loop {
                match self.word(rank, MET).load(Acquire) {
                    MET_ALL => return true,
                    ENDED => return false,
                    _ if gone(rank) => return false,
                    _ => pause(),
                }
            }
        })
    }

    /// A rank at which NCCL, or the device, has failed.
    pub(super) fn one_failed(&self) -> Option<usize> {
        self.marks().one_failed()
    }

    /// Which ranks have failed.
    pub(super) fn marks(&self) -> Marks {
        Marks::new(self.memory.clone(), self.at)
    }

    /// The words of collectives that return a request.
    pub(super) fn window(&self) -> Option<Window<SharedWords>> {
        let words = |at| SharedWords::new(self.memory.clone(), at, self.at.size);
        Window::new(words(POSTED)?, words(FOUND)?, self.at.rank)
    }

    /// Waits for the collective that NCCL has begun; not for one that another rank does not take part in.
    pub(super) fn wait(&self) -> Result<(), String> {
        let Some((comm, _)) = &self.comm else { return Ok(()) };
        let (begin, mut polls) = (Instant::now(), 0u32);
        loop {
            if comm.is_done().map_err(|why| why.to_string())? {
                return Ok(());
            }
            if let Some(rank) = self.one_failed() {
                return Err(format!("NCCL has failed at rank {rank} of the communicator"));
            }
            if begin.elapsed() > LIMIT {
                return Err(format!("a collective of NCCL took longer than {LIMIT:?}: is a rank gone?"));
            }
            polls = polls.saturating_add(1);
            if polls > POLLS { std::thread::sleep(SLEEP) } else { std::thread::yield_now() }
        }
    }

    /// Nothing opens the file any more.
    pub(super) fn unlink(&mut self) {
        self.file.unlink();
    }

    /// Posts the next collective of the communicator. A wait for others makes the MPI progress, since they
    /// may be in a call that needs this rank's, and ends where one of them has ended.
    ///
    /// # Safety
    /// `comm` is the communicator.
    pub(super) unsafe fn agree(
        &mut self,
        kind: Kind,
        abi: &Abi,
        comm: Handle,
    ) -> Result<Outcome, Disagreement<String>> {
        let (marks, mut polls) = (self.marks(), 0u32);
        self.agreement.agree(kind, || {
            // SAFETY: the caller's promise.
            unsafe { progress(&mut polls, abi, comm) };
            if polls % SEARCH == 0 {
                if let Some(rank) = marks.one_gone() {
                    return Err(format!("the process of rank {rank} has ended"));
                }
            }
            Ok(())
        })
    }

    /// From now on this rank, and then the others, post host memory, and NCCL's communicator is aborted.
    pub(super) fn fail(&mut self) {
        self.is_failed = true;
        self.marks().mark_failed();
        if let Some((comm, _)) = self.comm.take() {
            // Work that another rank takes no part in has no end.
            comm.abort();
        }
    }

    /// Whether the ranks' devices can exchange messages, which the first reduction that all ranks agree on
    /// finds out; the same at all ranks.
    ///
    /// # Safety
    /// All ranks have agreed, in a collective of `comm`.
    pub(super) unsafe fn has_messages(&mut self, library: &Library, comm: Handle) -> bool {
        if self.messages.is_none() {
            let _quiet = Quiet::of(library, comm);
            // SAFETY: the caller's promise.
            let made = unsafe { Messages::new(library, comm, self.at.rank) };
            // SAFETY: as above.
            if unsafe { Self::is_everywhere(made.is_some(), self.at.size, &library.abi, comm) } {
                self.messages = made;
            } else {
                self.is_failed = true;
            }
        }
        self.messages.is_some()
    }

    /// Makes what two ranks reduce by in one kernel of each, such operations first, with memory near that of
    /// this one: its context, where both have it.
    ///
    /// # Safety
    /// All ranks have agreed, in a collective of `comm`.
    pub(super) unsafe fn make_pair(
        &mut self,
        library: &Library,
        comm: Handle,
        computed: ((Op, Type), usize),
    ) -> Option<Context> {
        let (abi, _quiet) = (&library.abi, Quiet::of(library, comm));
        // SAFETY: the caller's promise.
        let made = unsafe { Pair::new(abi, comm, self.at, computed, self.marks()) };
        // SAFETY: as above.
        let is_everywhere = unsafe { Self::is_everywhere(made.is_some(), self.at.size, abi, comm) };
        self.pair = made.filter(|_| is_everywhere);
        self.pair.as_ref().map(Pair::context)
    }

    /// What two ranks reduce by.
    pub(super) fn pair(&self) -> Option<&Pair> {
        self.pair.as_ref()
    }

    /// What they exchange them by.
    pub(super) fn messages(&self) -> Option<&Messages> {
        self.messages.as_ref()
    }

    /// Whether something is so at all ranks.
    ///
    /// # Safety
    /// All ranks ask, in a collective of `comm`, which has so many.
    pub(super) unsafe fn is_everywhere(is_here: bool, ranks: usize, abi: &Abi, comm: Handle) -> bool {
        let (own, mut all, byte) = (u8::from(is_here), vec![0u8; ranks], abi.handles.byte);
        // SAFETY: places of so many bytes; the caller's promise.
        let got = unsafe { pmpi!("Allgather", &raw const own, 1, byte, all.as_mut_ptr(), 1, byte, comm) };
        got.is_ok() && all.iter().all(|is_there| *is_there == 1)
    }

    /// Whether NCCL's communicator, if there is one, is on that device.
    pub(super) fn is_on(&self, device: i32) -> bool {
        self.comm.as_ref().is_none_or(|(_, on)| *on == device)
    }

    /// NCCL's communicator, made by the first collective that all ranks agree on; `None`, at all ranks alike,
    /// where it cannot be made.
    ///
    /// # Safety
    /// All ranks have agreed, in a collective of `comm`.
    pub(super) unsafe fn comm(
        &mut self,
        library: &Library,
        comm: Handle,
        near: usize,
        device: i32,
    ) -> Option<&Comm> {
        let abi = &library.abi;
        if self.comm.is_none() {
            let _quiet = Quiet::of(library, comm);
            // SAFETY: the caller's promise.
            let made = unsafe { self.make(abi, comm, near) };
            // SAFETY: as above.
            let is_everywhere = unsafe { Self::is_everywhere(made.is_ok(), self.at.size, abi, comm) };
            match made {
                Ok(comm) if is_everywhere => self.comm = Some((comm, device)),
                made => {
                    self.is_failed = true;
                    if let Err(why) = made {
                        static SAID: Once = Once::new();
                        SAID.call_once(|| say(&format!("collectives go through host memory: {why}\n")));
                    }
                }
            }
        }
        self.comm.as_ref().map(|(comm, _)| comm)
    }

    unsafe fn make(&self, abi: &Abi, comm: Handle, near: usize) -> Result<Comm, NcclError> {
        const LEN: usize = 128;
        let nccl = Nccl::open(Vendor::Nvidia)?;
        // The id, and whether there is one.
        let (mut sent, mut failed) = ([0u8; LEN + 1], None);
        if self.at.rank == 0 {
            match nccl.unique_id() {
                Ok(id) => {
                    sent[..LEN].copy_from_slice(&id.0);
                    sent[LEN] = 1;
                }
                Err(why) => failed = Some(why),
            }
        }
        // SAFETY: so many bytes; the caller's promise.
        let got = unsafe { pmpi!("Bcast", sent.as_mut_ptr(), sent.len(), abi.handles.byte, 0, comm) };
        if got.is_err() || sent[LEN] != 1 {
            let why = || NcclError::Argument("rank 0 has no unique id of NCCL's".to_owned());
            return Err(failed.unwrap_or_else(why));
        }
        let mut id = UniqueId([0; LEN]);
        id.0.copy_from_slice(&sent[..LEN]);
        Comm::new(nccl, &id, self.at, near, LIMIT)
    }
}

/// Has the MPI progress, now and then: others may be in a call that needs this rank's.
unsafe fn progress(polls: &mut u32, abi: &Abi, comm: Handle) {
    *polls = polls.wrapping_add(1);
    if *polls % EAGER == 0 {
        let mut flag: c_int = 0;
        // SAFETY: valid places; what is found stays. The caller's promise that `comm` is a communicator.
        let _ = unsafe { pmpi!("Iprobe", 0, 0, comm, &raw mut flag, abi.status_ignore) };
        std::thread::yield_now();
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.unlink();
    }
}

#[cfg(test)]
mod tests {
    use super::super::marks::Left;
    use super::*;

    fn board(name: u128, rank: usize) -> Side {
        Side::new(name, Rank { rank, size: 2 }).unwrap()
    }

    #[test]
    fn a_rank_is_usable_once_all_have_come_and_the_file_has_no_name_then() {
        let name = u128::from_ne_bytes(ipc::random().unwrap());
        let path = format!("/dev/shm/strait-mpi-{name:032x}");
        let mut first = board(name, 0);
        assert!(!first.is_usable() && std::fs::exists(&path).unwrap());
        let mut second = board(name, 1);
        assert!(first.is_usable() && second.is_usable());
        assert!(!std::fs::exists(&path).unwrap());
        second.fail();
        assert!(!first.is_usable() && !second.is_usable());
    }

    #[test]
    fn a_rank_that_is_in_finalize_may_give_up_and_that_stays() {
        let name = u128::from_ne_bytes(ipc::random().unwrap());
        let (first, second) = (board(name, 0).marks(), board(name, 1).marks());
        assert_eq!(second.has_left(0), None);
        let seen = [Left::Finalize, Left::Broken, Left::Finalize].map(|why| {
            first.mark_left(why);
            second.has_left(0)
        });
        assert_eq!(seen, [Some(Left::Finalize), Some(Left::Broken), Some(Left::Broken)]);
        assert_eq!(second.has_left(1), None);
    }

    #[test]
    fn memory_is_open_at_no_rank_once_each_has_closed_it_or_has_ended() {
        let name = u128::from_ne_bytes(ipc::random().unwrap());
        let (first, second) = (board(name, 0), board(name, 1));
        first.marks().mark_closed();
        assert!(!first.marks().have_all_closed());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = Name::of(child.id()).unwrap();
        child.wait().unwrap();
        let own = second.word(1, PROCESS).load(Acquire);
        let word = u64::from(ended.process) << 32 | u64::from(ended.namespace);
        second.word(1, PROCESS).store(word, Release);
        assert!(first.marks().have_all_closed());
        second.word(1, PROCESS).store(own, Release);
        assert!(!first.marks().have_all_closed());
        second.marks().mark_closed();
        assert!(first.marks().have_all_closed() && second.marks().have_all_closed());
    }

    #[test]
    fn a_rank_whose_process_has_ended_has_not_come() {
        let name = u128::from_ne_bytes(ipc::random().unwrap());
        let (mut first, second) = (board(name, 0), board(name, 1));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = Name::of(child.id()).unwrap();
        child.wait().unwrap();
        let word = u64::from(ended.process) << 32 | u64::from(ended.namespace);
        second.word(1, PROCESS).store(word, Release);
        assert!(!first.is_usable());
    }
}
