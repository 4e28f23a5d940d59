//! Collectives of device memory by NCCL or by the ranks' devices, and MPI_Reduce_local by a kernel.
//!
//! Each rank posts its collectives of at least so many bytes, a number that is the same at all ranks
//! (STRAIT_MPI_NCCL_LEAST, STRAIT_MPI_REDUCE_LEAST, STRAIT_MPI_MOVE_LEAST), to its communicator's board,
//! with the kind of its memory. Where all ranks pass device memory that NCCL, or the devices' kernels, can
//! take, these do the collective; else each rank goes on with the MPI's own. A rank on which they have
//! failed posts host memory from then on, so that all ranks use mirrors.
//!
//! | module | what it holds |
//! |---|---|
//! | `element` | predefined datatypes and operations |
//! | `plan` | the calls that are posted, and what NCCL is called with |
//! | `devices` | collectives by the ranks' devices |
//! | `reduction`, `moves`, `vectors` | reductions; what computes nothing; of blocks that not all know |
//! | `part`, `messages` | a rank's part in one of them, messages between devices |
//! | `pair` | MPI_Allreduce and MPI_Reduce_scatter_block of two ranks in one kernel of each |
//! | `nonblocking` | collectives by the ranks' devices that return a request |
//! | `way` | by which of both they go |
//! | `board`, `marks` | the words that the ranks of a communicator share, and NCCL's communicator |
//! | `file` | the file that has these words |
//! | `comms` | which communicators have a board |
//! | `local` | MPI_Reduce_local |

mod board;
mod comms;
mod devices;
mod element;
mod file;
pub(crate) mod local;
mod marks;
mod messages;
mod moves;
mod nonblocking;
mod pair;
mod part;
mod plan;
mod reduction;
mod vectors;
mod way;

use core::ffi::c_int;

use device_ops::board::{Kind, Outcome};

use crate::abi::{Abi, Handle};
use crate::args::{Args, Style};
use crate::buffer::sync;
use crate::counts::{Counts, Path};
use crate::library::{Library, library};
use crate::posted::{Plan, What};
use crate::refuse::{self, Target};
use crate::row::{Ends, Row};
use crate::settings;
use board::Side;
use comms::State;
pub(crate) use comms::{finish, made};
use messages::{FAILED, Failed};
use nonblocking::Begin;
use part::Part;
pub(crate) use way::is_on;
use way::{Way, is_by_nccl, way_of};

/// Elements of predefined types have at most so many bytes.
const LONGEST: usize = 16;
/// The most arguments of a posted call.
const MOST_WORDS: usize = 12;

/// Whether a call with these arguments may have to be posted, whatever its memory.
///
/// # Safety
/// The arguments are those of the plan's call, passed in that way.
#[inline(always)]
pub(crate) unsafe fn is_posted(plan: Option<&Plan>, style: Style, words: &[usize]) -> bool {
    let Some(plan) = plan.filter(|_| is_on()) else { return false };
    // SAFETY: the caller's promise.
    is_by_nccl() || unsafe { may_be_long(plan, style, words) }
}

/// Whether the devices may do it, by the length of its data.
unsafe fn may_be_long(plan: &Plan, style: Style, words: &[usize]) -> bool {
    let Some(least) = devices::least(plan) else { return false };
    if plan.what.is_vector()
        || matches!(plan.what, What::ReduceScatter | What::ReduceScatterBlock | What::Allgatherv)
    {
        return true;
    }
    if !plan.what.is_reduction() {
        // SAFETY: the caller's promise.
        return unsafe { is_long(plan, style, words, least) };
    }
    let word = words[plan.count];
    let count = match style {
        Style::C => i64::from(word as c_int),
        Style::Large => word as i64,
        // SAFETY: the caller's promise: the address of an INTEGER.
        Style::Fortran => i64::from(unsafe { (word as *const c_int).read() }),
    };
    usize::try_from(count).unwrap_or(0).saturating_mul(LONGEST) >= least
}

/// Whether its blocks may have so many bytes. They are of any datatype.
unsafe fn is_long(plan: &Plan, style: Style, words: &[usize], least: usize) -> bool {
    let Some(library) = library() else { return false };
    let mut own = [0; MOST_WORDS];
    let Some(own) = own.get_mut(..words.len()) else { return false };
    own.copy_from_slice(words);
    let args = Args { words: own, style, abi: &library.abi };
    // SAFETY: the caller's promise.
    let block = unsafe { plan.bytes(&args) };
    let blocks = if plan.what == What::Bcast { 1 } else { way::ranks().unwrap_or(usize::MAX) };
    block.is_some_and(|block| block.saturating_mul(blocks) >= least)
}

/// MPI_Init is over: the other ranks may see this one.
///
/// # Safety
/// It was successful.
pub(crate) unsafe fn begin(library: &Library) {
    if way_of(library) == Some(Way::Devices) {
        // SAFETY: the caller's promise.
        unsafe { comms::begin(library) };
    }
}

/// Does the call if all ranks agree that NCCL or their devices do it, or begins it: its code. `None` where it
/// is the MPI's, with these arguments. By `begin` the MPI's own is begun later.
///
/// # Safety
/// The arguments are those of the row's call, and valid.
pub(crate) unsafe fn run(
    library: &Library,
    row: &'static Row,
    args: &mut Args<'_>,
    begin: Begin,
) -> Option<c_int> {
    let (plan, way) = (row.plan.as_ref()?, way_of(library)?);
    // SAFETY: the caller's promise; so below.
    unsafe {
        if !is_posted(Some(plan), args.style, args.words) {
            return None;
        }
        let comm = args.comm(plan.comm);
        if let Ends::Request(at) = row.ends {
            let state = comms::state_of(library, comm).filter(|_| way == Way::Devices)?;
            return nonblocking::start(
                library,
                (row, begin),
                args,
                (state.at, state.lane()?),
                (comm, at.into()),
            );
        }
        let code = match way {
            Way::Nccl if !plan.what.is_of_nccl() || plan.bytes(args)? < settings::nccl_least()? => {
                return None;
            }
            Way::Nccl => {
                let state = comms::state_of(library, comm)?;
                let call = plan.call(library, row, args, state.at);
                let mut board = state.board()?;
                by_nccl(library, row, call, &mut board, comm)?
            }
            Way::Devices => {
                let state = comms::state_of(library, comm)?;
                let is_short = |bytes: usize| devices::least(plan).is_none_or(|least| bytes < least);
                // Of the others not all ranks know the length: each has a say.
                if !plan.what.is_vector() && is_short(devices::bytes(plan, args, state.at.size)?) {
                    return None;
                }
                let pair = state.pair.get().copied().flatten().filter(|_| is_for_pairs(plan));
                let mut paired = None;
                if let Some(context) = pair {
                    let call = reduction::paired(plan, library, row, args, state.at, context);
                    let mut board = state.board()?;
                    paired = by_pair(library, row, call, &mut board, comm);
                }
                match paired {
                    Some(code) => code,
                    None => {
                        let part = devices::part(plan, library, row, args, state.at);
                        let mut board = state.board()?;
                        by_devices(library, row, part, (&state, &mut board), comm)?
                    }
                }
            }
        };
        // The error handler may call a collective of the same communicator: what calls it, as the look at the
        // buffers before does, has no lock of the board.
        Some(if code == 0 { 0 } else { refuse::raised(Target::Comm(comm), code) })
    }
}

/// A communicator's state, and its board. What is called with both answers the code of an error that is to be
/// raised.
type Shared<'a> = (&'a State, &'a mut Side);

/// Posts whether this rank has a part of device memory: it, where all ranks have one.
unsafe fn agreed<T>(board: &mut Side, abi: &Abi, comm: Handle, part: Option<T>) -> Result<Option<T>, String> {
    let kind = if part.is_some() { Kind::Device } else { Kind::Host };
    // SAFETY: the caller's promise: a communicator, of whose collectives this is one.
    let outcome = unsafe { board.agree(kind, abi, comm) }.map_err(|why| why.to_string())?;
    Ok(part.filter(|_| outcome == Outcome::Device))
}

/// Whether it is long enough for devices: where no rank knows that alone, at one that sends or receives so
/// much. The ranks agree about that, too.
unsafe fn is_long_anywhere(
    plan: &Plan,
    board: &mut Side,
    abi: &Abi,
    comm: Handle,
    part: &Part,
) -> Result<bool, String> {
    if plan.root.is_some() || !plan.what.is_vector() {
        return Ok(true);
    }
    let is_short = devices::least(plan).is_none_or(|least| part.own() < least as u64);
    // SAFETY: the caller's promise: all ranks do the same.
    let all_short = unsafe { agreed(board, abi, comm, is_short.then_some(())) }?;
    Ok(all_short.is_none())
}

unsafe fn by_nccl(
    library: &Library,
    row: &'static Row,
    call: Option<plan::Call>,
    board: &mut Side,
    comm: Handle,
) -> Option<c_int> {
    let abi = &library.abi;
    // SAFETY: the caller's promise; so below.
    unsafe {
        let usable = board.is_usable();
        let call = call.filter(|call| usable && board.is_on(call.device));
        let done = match agreed(board, abi, comm, call) {
            Ok(call) => {
                let call = call?;
                let nccl = board.comm(library, comm, call.near(), call.device)?;
                sync::wait_for(call.near());
                call.begin(nccl).map_err(|why| why.to_string()).and_then(|()| board.wait())
            }
            Err(why) => Err(why),
        };
        let why = done.map(|()| row.counts.add(Path::Nccl)).err();
        Some(why.map_or(0, |why| failed(library, board, &row.counts, &why)))
    }
}

unsafe fn by_devices(
    library: &Library,
    row: &'static Row,
    part: Option<Part>,
    (state, board): Shared<'_>,
    comm: Handle,
) -> Option<c_int> {
    let (plan, abi) = (row.plan.as_ref()?, &library.abi);
    // SAFETY: the caller's promise; so below.
    unsafe {
        let part = part.filter(|_| state.have_met(board, library, comm) && board.is_usable());
        let done = match agreed(board, abi, comm, part) {
            Ok(part) => {
                let part = part?;
                match is_long_anywhere(plan, board, abi, comm, &part) {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(why) => return Some(failed(library, board, &row.counts, &why)),
                }
                if !board.has_messages(library, comm) {
                    return None;
                }
                if let Some(computed) = part.computed().filter(|_| may_be_paired(plan, state)) {
                    let _ = state.pair.set(board.make_pair(library, comm, computed));
                }
                part.run(abi, board).map(|()| Path::Devices)
            }
            Err(why) => return Some(failed(library, board, &row.counts, &why)),
        };
        Some(ended(library, board, &row.counts, done))
    }
}

/// Reduces in one kernel of each of two ranks; `None` where one of them has none now, and both go on as ranks
/// do that never had any: they agree once more. So a rank has posted both times, or has reduced here.
unsafe fn by_pair(
    library: &Library,
    row: &'static Row,
    call: Option<pair::Call>,
    board: &mut Side,
    comm: Handle,
) -> Option<c_int> {
    let call = call.filter(|_| board.is_usable());
    // Once both have posted, neither waits for more than the other's kernel.
    let permit = call.as_ref().and_then(|call| {
        call.wait();
        pair::Permit::take()
    });
    // SAFETY: the caller's promise; so below.
    let agreed = unsafe { agreed(board, &library.abi, comm, call.filter(|_| permit.is_some())) };
    let call = match agreed {
        Ok(call) => call?,
        Err(why) => return Some(failed(library, board, &row.counts, &why)),
    };
    // SAFETY: as above: both have agreed.
    let done = unsafe { board.pair().map_or(Err(Failed::Device), |pair| pair.run(&call)) };
    drop(permit);
    Some(ended(library, board, &row.counts, done.map(|()| Path::Paired)))
}

/// The code of what has been done so, or has failed.
fn ended(library: &Library, board: &mut Side, counts: &Counts, done: Result<Path, Failed>) -> c_int {
    match done {
        Ok(path) => {
            counts.add(path);
            0
        }
        Err(Failed::Device) => failed(library, board, counts, FAILED),
        Err(Failed::Code(code)) => {
            board.fail();
            counts.add(Path::Refused);
            code
        }
    }
}

/// Whether two ranks may reduce so in one kernel of each.
fn is_for_pairs(plan: &Plan) -> bool {
    matches!(plan.what, What::Allreduce | What::ReduceScatterBlock)
}

/// Whether two ranks have not found out yet whether they reduce in one kernel of each; the same at both.
fn may_be_paired(plan: &Plan, state: &State) -> bool {
    is_for_pairs(plan) && state.at.size == 2 && state.pair.get().is_none()
}

/// Later collectives of the communicator go by mirrors; the code of an error with these words.
fn failed(library: &Library, board: &mut Side, counts: &Counts, why: &str) -> c_int {
    board.fail();
    counts.add(Path::Refused);
    refuse::code(library.abi.errors.other, why)
}
