//! Collectives that return a request, by the ranks' devices.
//!
//! A call that returns a request waits for no other rank. It says what memory it passes, by words in shared
//! memory ([`device_ops::window`]), and is put into its communicator's queue. Whether devices do it, or the
//! MPI with mirrors, is known once all ranks have called, or one that passes host memory. The MPI's own
//! collective is called with a communicator of this library's then: its calls there have the same order at
//! all ranks, that of the outcomes. The program has a generalised request. A rank that passes host memory,
//! and has no earlier call in the queue, knows the outcome at once, and the program gets the MPI's request.
//!
//! | module | what it holds |
//! |---|---|
//! | `words` | a call's arguments, kept until it begins |
//! | `request` | the request that the program has |
//! | `running` | a collective whose outcome is known |
//! | `lane` | all of one communicator |
//! | `progress` | all of the process, and what has them go on |

mod lane;
mod progress;
mod request;
mod running;
mod words;

use core::ffi::c_int;
use std::sync::Arc;

use device_ops::nccl::Rank;

use super::board::Side;
use super::devices;
use super::element::computed;
use super::messages::{Messages, Quiet};
use crate::abi::Handle;
use crate::args::Args;
use crate::counts::Path;
use crate::library::Library;
use crate::posted::What;
use crate::refuse::{self, Target};
use crate::row::Row;
use lane::{Lane, Says};
pub(super) use progress::{Id, drain, finish, is_possible};
use request::Promise;
pub(super) use running::Begin;
use running::Call;
pub(super) use words::Keep;
use words::{TooLarge, Words};

/// Of a communicator whose ranks all do the same; `None`, at all of them, where one has no memory for it.
///
/// # Safety
/// `comm` is the communicator, and the call is a collective one of all its ranks.
pub(super) unsafe fn open(
    library: &Library,
    mut board: Option<&mut Side>,
    at: Rank,
    comm: Handle,
) -> Option<Id> {
    let window = board.as_deref().and_then(|board| Some((board.window()?, board.marks())));
    // SAFETY: the caller's promise; so below.
    unsafe {
        // The program's handler may call a collective of `comm`, whose board is held here.
        let _quiet = Quiet::of(library, comm);
        let messages = Messages::new(library, comm, at.rank);
        let is_here = window.is_some() && messages.is_some();
        let is_everywhere = Side::is_everywhere(is_here, at.size, &library.abi, comm);
        // All ranks have opened the file, or cannot.
        if let Some(board) = &mut board {
            board.unlink();
        }
        if !is_everywhere {
            return None;
        }
        let ((window, marks), messages) = (window?, messages?);
        Some(progress::add(Lane::new(window, messages, marks)))
    }
}

/// Begins the call. `None` where it is the MPI's with these arguments, which may be others now.
///
/// # Safety
/// The arguments are those of the row's call, and valid; the place of the request is at `at`.
pub(super) unsafe fn start(
    library: &Library,
    (row, begin): (&'static Row, Begin),
    args: &mut Args<'_>,
    (rank, lane): (Rank, &Id),
    (comm, at): (Handle, usize),
) -> Option<c_int> {
    let plan = row.plan.as_ref()?;
    // SAFETY: the caller's promise; so below.
    unsafe {
        if plan.what == What::Alltoallw {
            return None;
        }
        // What follows is the same at all ranks.
        if !plan.what.is_vector() && devices::bytes(plan, args, rank.size)? < devices::least(plan)? {
            return None;
        }
        if let Some(op) = plan.op {
            computed(library, args.op(op), args.datatype(plan.datatype))?;
        }
        let (over, is_one) = lane.with(library, |lane| (lane.is_over(), lane.one_failed().is_none()))?;
        if let Some(why) = over {
            row.counts.add(Path::Refused);
            return Some(refuse::raise(Target::Comm(comm), library.abi.errors.other, &why));
        }
        let part = if is_one { devices::part(plan, library, row, args, rank) } else { None };
        let is_of_own = plan.what.is_vector() && plan.root.is_none();
        let least = devices::least(plan).map_or(u64::MAX, |least| least as u64);
        let is_short = is_of_own.then(|| part.as_ref().is_none_or(|part| part.own() < least));
        let says = Says { is_possible: part.is_some(), is_short };
        let native = lane.with(library, |lane| lane.passes_host(says).then(|| lane.native(comm)))?;
        if let Some((native, number)) = native {
            // The MPI's, by a communicator of which it is called in the same order at all ranks.
            args.words[plan.comm] = if args.style == crate::args::Style::Fortran { number } else { native };
            return None;
        }
        let words = match Words::of(row, args, rank.rank, rank.size) {
            Ok(words) => Arc::new(words),
            Err(TooLarge) => {
                let why = "a count of a collective that returns a request is more than 2147483647";
                return Some(refuse::raise(Target::Comm(comm), library.abi.errors.count, why));
            }
        };
        let promise = match Promise::new() {
            Ok(promise) => promise,
            Err(code) => return Some(refuse::raised(Target::Comm(comm), code)),
        };
        args.set_request(at, promise.request());
        if let Some(part) = &part {
            part.wait();
        }
        lane.with(library, |lane| {
            lane.push(Call { row, words, promise, begin }, part, says);
            lane.poll(library);
        });
        Some(0)
    }
}
