//! Windows: how they are made, and the calls that synchronise them.

use core::ffi::c_int;

use hmem::Kind;

use super::{Call, hooks};
use crate::abi::Handle;
use crate::args::Style;
use crate::buffer::{Failure, sync};
use crate::call::raise;
use crate::counts::{Path, WINDOWS};
use crate::host::is_host;
use crate::library::pmpi;
use crate::refuse::{self, Target};
use crate::requests::{self, any_freed};
use crate::settings;
use crate::windows::{self, Shadow, is_all_host, is_empty};

const ATTACH: &str = "MPI_Win_attach of device memory is not possible, since other processes name it by its \
                      address; make a window of it with MPI_Win_create, or attach host memory";

unsafe fn create(call: &mut Call<'_>) -> c_int {
    // SAFETY: by the call: base, size, displacement unit, info, communicator, window.
    unsafe {
        let (base, len) = (call.args.words[0], call.args.long(1));
        if len == 0 || base == 0 || is_host(base) || hmem::classify(base, len) == Kind::System {
            return call.forward();
        }
        let (kind, comm) = (hmem::classify(base, len), call.args.comm(4));
        let mut rank: c_int = 0;
        if let Err(code) = pmpi!("Comm_rank", comm, &raw mut rank) {
            return code;
        }
        sync::wait_for(base);
        let shadow = match Shadow::new(base, kind, len, rank) {
            Ok(shadow) => shadow,
            Err(failure) => return raise(call.library, Target::Comm(comm), failure),
        };
        call.args.words[0] = shadow.public();
        let code = call.forward();
        if code == 0 {
            WINDOWS.add(Path::Mirror);
            windows::add_shadow(call.args.window_at(5), shadow);
        }
        code
    }
}

unsafe fn attach(call: &mut Call<'_>) -> c_int {
    let base = call.args.words[1];
    // SAFETY: a length. Of no byte nothing is accessed.
    if unsafe { call.args.long(2) } == 0 || is_host(base) || hmem::classify(base, 1) == Kind::System {
        // SAFETY: the arguments of the call.
        return unsafe { call.forward() };
    }
    WINDOWS.add(Path::Refused);
    // SAFETY: the window is the first argument.
    unsafe {
        let window = call.args.window(0);
        refuse::raise(Target::Window(window), call.library.abi.errors.attach, ATTACH)
    }
}

unsafe fn free(call: &mut Call<'_>) -> c_int {
    // SAFETY: a window by reference. MPI_Win_free(3): all accesses are complete when it returns.
    unsafe {
        let window = call.args.window_at(0);
        let code = call.forward();
        match windows::remove(window) {
            Err(failure) if code == 0 => {
                raise(call.library, Target::Comm(call.args.abi.handles.world), failure)
            }
            _ => code,
        }
    }
}

/// What a synchronising call does, besides what it is.
#[derive(Clone, Copy)]
struct Does {
    /// Which argument the window is, and the rank, if it is for one.
    window: usize,
    rank: Option<usize>,
    /// The accesses of this process are complete.
    completes: bool,
}

/// The process's own window is synchronised before and after; what it has fetched is copied after.
unsafe fn synchronise(call: &mut Call<'_>, does: Does) -> c_int {
    // SAFETY: by the call.
    unsafe {
        let window = call.args.window(does.window);
        let rank = does.rank.map(|at| call.args.int(at));
        if let Err(failure) = windows::with_shadow(window, rank, Shadow::push) {
            return raise(call.library, Target::Window(window), failure);
        }
        let code = call.forward();
        if code != 0 {
            return code;
        }
        answer(call, window, after(window, rank, does.completes))
    }
}

unsafe fn after(window: Handle, rank: Option<c_int>, completes: bool) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe {
        if completes {
            windows::end_origins(window, rank)?;
        }
        windows::with_shadow(window, rank, Shadow::pull)
    }
}

unsafe fn answer(call: &Call<'_>, window: Handle, done: Result<(), Failure>) -> c_int {
    match done {
        Ok(()) => 0,
        // SAFETY: a valid window.
        Err(failure) => unsafe { raise(call.library, Target::Window(window), failure) },
    }
}

macro_rules! synchronising {
    ($($name:ident: $window:literal, $rank:expr, $completes:literal;)*) => {
        $(
            unsafe fn $name(call: &mut Call<'_>) -> c_int {
                // SAFETY: the places of the arguments of that call.
                unsafe {
                    synchronise(call, Does { window: $window, rank: $rank, completes: $completes })
                }
            }
        )*
    };
}

synchronising! {
    fence: 1, None, true;
    post: 2, None, false;
    complete: 0, None, true;
    wait: 0, None, false;
    lock: 3, Some(1), false;
    unlock: 1, Some(0), true;
    lock_all: 1, None, false;
    all_complete: 0, None, true;
    sync: 0, None, false;
}

unsafe fn test(call: &mut Call<'_>) -> c_int {
    // SAFETY: a window, and a flag that the call has written.
    unsafe {
        let window = call.args.window(0);
        let code = call.forward();
        if code != 0 || call.args.written(1, 0) == 0 {
            return code;
        }
        answer(call, window, after(window, None, false))
    }
}

/// Programs of the unified memory model read their window after a barrier: all windows are synchronised
/// there. So is what freed requests have received.
unsafe fn barrier(call: &mut Call<'_>) -> c_int {
    let comm = Target::Comm(call.args.abi.handles.world);
    // SAFETY: the program's windows are valid.
    unsafe {
        if let Err(failure) = windows::with_all(Shadow::push) {
            return raise(call.library, comm, failure);
        }
        let code = call.forward();
        requests::poll_freed(call.args.abi, false);
        if code != 0 {
            return code;
        }
        match windows::with_all(Shadow::pull) {
            Ok(()) => 0,
            Err(failure) => raise(call.library, comm, failure),
        }
    }
}

unsafe fn get_attr(call: &mut Call<'_>) -> c_int {
    // SAFETY: by the call: a window, a key, a place for the value, and one for a flag.
    unsafe {
        let (window, key) = (call.args.window(0), call.args.int(1));
        let code = call.forward();
        let of = call.args.abi.window;
        let Some((base, _)) = windows::part(window).filter(|_| code == 0) else { return code };
        let value = call.args.words[2] as *mut usize;
        if key == of.base {
            value.write(base);
        } else if key == of.model && call.args.style == Style::Fortran {
            value.write(of.separate as usize);
        } else if key == of.model {
            value.write((&raw const call.library.abi.window.separate) as usize);
        }
        code
    }
}

/// MPI_Win_shared_query of a window on device memory: of this process's part it answers the device's memory;
/// another process's is none that this one loads from and stores to.
unsafe fn shared_query(call: &mut Call<'_>) -> c_int {
    // SAFETY: by the call: a window, a rank, places for the length, the displacement unit and the address.
    unsafe {
        let (window, rank) = (call.args.window(0), call.args.int(1));
        let code = call.forward();
        let Some((base, own)) = windows::part(window).filter(|_| code == 0) else { return code };
        let (len, address) = (call.args.words[2] as *mut isize, call.args.words[4] as *mut usize);
        if rank == own {
            address.write(base);
        } else {
            len.write(0);
            address.write(0);
        }
        code
    }
}

unsafe fn shared_query_large(call: &mut Call<'_>) -> c_int {
    // SAFETY: as above. The small form writes the lower half of the displacement unit alone.
    unsafe {
        (call.args.words[3] as *mut i64).write(0);
        shared_query(call)
    }
}

hooks! {
    MPI_Win_create [mpi_win_create_, ompi_win_create_f] (a b c d e f) !settings::is_off() => create;
    MPI_Win_create_c [] (a b c d e f) !settings::is_off() => create;
    MPI_Win_attach [mpi_win_attach_, ompi_win_attach_f] (a b c) !settings::is_off() => attach;
    MPI_Win_free [mpi_win_free_, ompi_win_free_f] (a) !is_empty() => free;
    MPI_Win_fence [mpi_win_fence_, ompi_win_fence_f] (a b) !is_empty() => fence;
    MPI_Win_post [mpi_win_post_, ompi_win_post_f] (a b c) !is_empty() => post;
    MPI_Win_complete [mpi_win_complete_, ompi_win_complete_f] (a) !is_empty() => complete;
    MPI_Win_wait [mpi_win_wait_, ompi_win_wait_f] (a) !is_empty() => wait;
    MPI_Win_test [mpi_win_test_, ompi_win_test_f] (a b) !is_empty() => test;
    MPI_Win_lock [mpi_win_lock_, ompi_win_lock_f] (a b c d) !is_empty() => lock;
    MPI_Win_unlock [mpi_win_unlock_, ompi_win_unlock_f] (a b) !is_empty() => unlock;
    MPI_Win_lock_all [mpi_win_lock_all_, ompi_win_lock_all_f] (a b) !is_empty() => lock_all;
    MPI_Win_unlock_all [mpi_win_unlock_all_, ompi_win_unlock_all_f] (a) !is_empty() => all_complete;
    MPI_Win_flush [mpi_win_flush_, ompi_win_flush_f] (a b) !is_empty() => unlock;
    MPI_Win_flush_all [mpi_win_flush_all_, ompi_win_flush_all_f] (a) !is_empty() => all_complete;
    MPI_Win_flush_local [mpi_win_flush_local_, ompi_win_flush_local_f] (a b) !is_empty() => unlock;
    MPI_Win_flush_local_all [mpi_win_flush_local_all_, ompi_win_flush_local_all_f] (a) !is_empty() => all_complete;
    MPI_Win_sync [mpi_win_sync_, ompi_win_sync_f] (a) !is_empty() => sync;
    MPI_Win_shared_query [mpi_win_shared_query_, ompi_win_shared_query_f] (a b c d e) !is_all_host() => shared_query;
    MPI_Win_shared_query_c [] (a b c d e) !is_all_host() => shared_query_large;
    MPI_Win_get_attr [mpi_win_get_attr_, ompi_win_get_attr_f] (a b c d) !is_all_host() => get_attr;
    MPI_Barrier [mpi_barrier_, ompi_barrier_f] (a) !is_all_host() || any_freed() => barrier;
}

hooks!(@fn mpi_win_shared_query_cptr_, Fortran, (a b c d e error), !is_all_host(), shared_query);
