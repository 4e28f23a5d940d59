//! Collectives of device memory by NCCL, and MPI_Reduce_local by a kernel.
//!
//! Each rank posts its collectives of at least STRAIT_MPI_NCCL_LEAST bytes, a number that is the same at all
//! ranks, to its communicator's board, with the kind of its memory. Where all ranks pass device memory that
//! NCCL can take, NCCL does the collective; else each rank goes on with the MPI's own. A rank on which NCCL
//! has failed posts host memory from then on, so that all ranks use mirrors.
//!
//! | module | what it holds |
//! |---|---|
//! | `element` | predefined datatypes and operations |
//! | `plan` | the calls that are posted, and what NCCL is called with |
//! | `board` | the words that the ranks of a communicator share, and NCCL's communicator |
//! | `comms` | which communicators have a board |
//! | `local` | MPI_Reduce_local |

mod board;
mod comms;
mod element;
pub(crate) mod local;
mod plan;

use core::ffi::c_int;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use device_ops::board::{Kind, Outcome};

use crate::args::Args;
use crate::buffer::sync;
use crate::counts::Path;
use crate::library::Library;
use crate::refuse::{self, Target};
use crate::row::Row;
use crate::settings;
pub(crate) use comms::{finish, made};

const UNKNOWN: u8 = 0;
const ON: u8 = 1;
const OFF: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether collectives are posted; found by the first call that asks, once MPI_Init is over.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    match STATE.load(Relaxed) {
        UNKNOWN => find(),
        state => state == ON,
    }
}

#[cold]
fn find() -> bool {
    let is_possible = comms::is_possible();
    STATE.store(if is_possible { ON } else { OFF }, Relaxed);
    is_possible
}

/// Does the call if all ranks agree that NCCL does it: its code. `None` where it is the MPI's.
///
/// # Safety
/// The arguments are those of the row's call, and valid.
pub(crate) unsafe fn run(library: &Library, row: &'static Row, args: &Args<'_>) -> Option<c_int> {
    let plan = row.plan.as_ref()?;
    // SAFETY: the caller's promise; so below.
    unsafe {
        if plan.bytes(args)? < settings::nccl_least()? {
            return None;
        }
        let (abi, comm) = (&library.abi, args.comm(plan.comm));
        let state = comms::state_of(library, comm)?;
        let mut board = state.board();
        let usable = board.is_usable();
        let call = if usable { plan.call(library, row, args, state.at) } else { None };
        let call = call.filter(|call| board.is_on(call.device));
        let kind = if call.is_some() { Kind::Device } else { Kind::Host };
        let done = match board.agree(kind, abi, comm) {
            Ok(outcome) => {
                let call = call.filter(|_| outcome == Outcome::Device)?;
                let nccl = board.comm(abi, comm, call.near(), call.device)?;
                sync::wait_for(call.near());
                call.begin(nccl).map_err(|why| why.to_string()).and_then(|()| board.wait())
            }
            Err(why) => Err(why.to_string()),
        };
        let Err(why) = done else {
            row.counts.add(Path::Nccl);
            return Some(0);
        };
        board.fail();
        drop(board);
        row.counts.add(Path::Refused);
        Some(refuse::raise(Target::Comm(comm), abi.errors.other, &why))
    }
}
