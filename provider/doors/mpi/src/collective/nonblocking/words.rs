//! The arguments of a collective as its form in C with counts of `int` has them: for a call that is made
//! later, when those of Fortran's are gone, and the program may have freed datatypes.

use core::ffi::c_int;
use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::args::{Args, Style};
use crate::buffer::Resolver;
use crate::fortran;
use crate::library::pmpi;
use crate::posted::What;
use crate::row::{Row, Type};

/// A count does not fit.
#[derive(Debug)]
pub(super) struct TooLarge;

/// Arguments up to the communicator, and what they name.
#[derive(Debug)]
pub(super) struct Words {
    pub(super) all: Vec<usize>,
    _counts: Vec<Vec<c_int>>,
    /// Copies of datatypes, which the program may free.
    datatypes: Vec<usize>,
}

/// What each argument is: a buffer, a count, an array of counts or displacements, a datatype, an operation, a
/// root, the communicator.
fn signature(what: What) -> &'static [u8] {
    match what {
        What::Bcast => b"bctrm",
        What::Reduce => b"bbctorm",
        What::Allreduce | What::Scan | What::Exscan | What::ReduceScatterBlock => b"bbctom",
        What::ReduceScatter => b"bbatom",
        What::Gather | What::Scatter => b"bctbctrm",
        What::Allgather | What::Alltoall => b"bctbctm",
        What::Gatherv => b"bctbaatrm",
        What::Scatterv => b"baatbctrm",
        What::Allgatherv => b"bctbaatm",
        What::Alltoallv => b"baatbaatm",
        // Not one of these.
        What::Alltoallw => b"",
    }
}

impl Words {
    /// Those of a call of a communicator with so many ranks, of which this is `rank`.
    ///
    /// # Safety
    /// The arguments are those of the call, and valid.
    pub(super) unsafe fn of(
        row: &'static Row,
        args: &Args<'_>,
        rank: usize,
        ranks: usize,
    ) -> Result<Words, TooLarge> {
        let signature = row.plan.map_or(&b""[..], |plan| signature(plan.what));
        let mut counts = Vec::new();
        let root = signature.iter().position(|is| *is == b'r');
        // SAFETY: the caller's promise; so below.
        let is_root = root.is_none_or(|at| unsafe { args.int(at) } == rank as c_int);
        let mut all = Vec::with_capacity(signature.len() + 1);
        for (at, is) in signature.iter().enumerate() {
            let word = args.words[at];
            // SAFETY: as above.
            let word = unsafe {
                match is {
                    b'b' if args.is_in_place(word) => args.abi.in_place,
                    b'b' if args.style == Style::Fortran && fortran::is_bottom(word) => 0,
                    b'b' => word,
                    b'c' => match c_int::try_from(args.signed(at)) {
                        Ok(count) => count as usize,
                        // Where this is not the root it may have no meaning.
                        Err(_) if !is_root => 0,
                        Err(_) => return Err(TooLarge),
                    },
                    // Of such calls each rank that is not the root has a buffer without arrays.
                    b'a' if args.style == Style::Large && is_root && word != 0 => {
                        let number = |n| c_int::try_from(args.number_at(at, n, true)).map_err(|_| TooLarge);
                        counts.push((0..ranks).map(number).collect::<Result<Vec<_>, _>>()?);
                        counts.last().map_or(0, |all| all.as_ptr() as usize)
                    }
                    b'a' => word,
                    b't' => args.datatype(at),
                    b'o' => args.op(at),
                    b'm' => args.comm(at),
                    _ => args.int(at) as usize,
                }
            };
            all.push(word);
        }
        let mut words = Words { all, _counts: counts, datatypes: Vec::new() };
        // SAFETY: as above.
        unsafe { words.hold_datatypes(row, args) };
        Ok(words)
    }

    /// Has the datatypes of significant buffers stay until these words are dropped, also where a count is 0.
    unsafe fn hold_datatypes(&mut self, row: &'static Row, args: &Args<'_>) {
        let mut resolver = Resolver::new(args, row.on);
        for buf in row.bufs {
            let Type::One(at) = buf.datatype else { continue };
            let word = args.words[usize::from(buf.at)];
            // SAFETY: the caller's promise; so below.
            let is_significant =
                !args.is_in_place(word) && unsafe { matches!(resolver.is_significant(buf), Ok(true)) };
            let datatype = self.all[usize::from(at)];
            if !is_significant || self.datatypes.contains(&datatype) {
                continue;
            }
            let (mut counts, mut combiner, mut copy): ([c_int; 3], c_int, _) = ([0; 3], 0, 0usize);
            let [ints, places, types] = counts.each_mut().map(std::ptr::from_mut);
            // SAFETY: valid places.
            unsafe {
                let asked = pmpi!("Type_get_envelope", datatype, ints, places, types, &raw mut combiner);
                let is_named = combiner == args.abi.combiners.named;
                if asked.is_ok() && !is_named && pmpi!("Type_dup", datatype, &raw mut copy).is_ok() {
                    self.all[usize::from(at)] = copy;
                    self.datatypes.push(copy);
                }
            }
        }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        ended().append(&mut self.datatypes);
    }
}

/// Copies of datatypes that are not needed any more.
fn ended() -> MutexGuard<'static, Vec<usize>> {
    static ENDED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    ENDED.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// How many [`Keep`]s of this thread there are.
    static KEPT: Cell<usize> = const { Cell::new(0) };
}

/// This thread frees none of them until this is dropped: it has a lock.
#[derive(Debug)]
pub(in crate::collective) struct Keep(());

impl Keep {
    pub(in crate::collective) fn new() -> Keep {
        KEPT.set(KEPT.get() + 1);
        Keep(())
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        KEPT.set(KEPT.get() - 1);
        free_ended();
    }
}

/// Frees them. To be called without a lock but those with a [`Keep`]: the MPI calls the functions of the
/// program's for attributes.
pub(super) fn free_ended() {
    if KEPT.get() > 0 {
        return;
    }
    let all = std::mem::take(&mut *ended());
    for mut datatype in all {
        // SAFETY: a copy that was made here.
        let _ = unsafe { pmpi!("Type_free", &raw mut datatype) };
    }
}
