//! What is kept of a communicator, as an attribute: MPI_COMM_WORLD, and those made of it by MPI_Comm_dup,
//! MPI_Comm_dup_with_info, MPI_Comm_split, MPI_Comm_split_type and MPI_Comm_create.
//!
//! A communicator's name is that of the one that it was made of, how many were made of that before, and the
//! ranks of it there. MPI-4.1, 6.12: all ranks make communicators of one in the same order. So each rank
//! derives the same name, and no other communicator has it.

use core::ffi::{c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use device_ops::nccl::{Library as Nccl, Rank, Vendor};

use super::board::Side;
use super::pair::Context;
use super::way::{Way, way_of};
use super::{messages, nonblocking};
use crate::abi::Handle;
use crate::group::Group;
use crate::library::{Library, pmpi};
use crate::settings;

/// What is kept.
#[derive(Debug)]
pub(super) struct State {
    name: u128,
    pub(super) at: Rank,
    /// Communicators that were made of it.
    made: AtomicU64,
    /// Made by the first collective; `None` where there is no memory for it.
    board: OnceLock<Option<Mutex<Side>>>,
    /// Whether all ranks have come, found by the first collective that has to know it: identical calls go
    /// the same way each time.
    met: OnceLock<bool>,
    /// The context of what two ranks reduce by in one kernel of each; `None` inside: there is none.
    pub(super) pair: OnceLock<Option<Context>>,
    /// Of collectives that return a request; made with the communicator, at all ranks or at none.
    lane: Option<nonblocking::Id>,
}

/// A board that this thread has locked. No function of the program's is called until it is dropped: a
/// collective of the same communicator there would wait for the lock.
#[derive(Debug)]
pub(super) struct Held<'a> {
    side: MutexGuard<'a, Side>,
    /// Dropped behind the lock.
    _keep: nonblocking::Keep,
}

impl Deref for Held<'_> {
    type Target = Side;

    fn deref(&self) -> &Side {
        &self.side
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Side {
        &mut self.side
    }
}

impl State {
    fn new(name: u128, at: Rank) -> State {
        let (board, met, pair) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        State { name, at, made: AtomicU64::new(0), board, met, pair, lane: None }
    }

    /// The board: of one communicator, in which one thread at a time is in a collective.
    pub(super) fn board(&self) -> Option<Held<'_>> {
        let board = self.board.get_or_init(|| Side::new(self.name, self.at).map(Mutex::new)).as_ref()?;
        let keep = nonblocking::Keep::new();
        Some(Held { side: board.lock().unwrap_or_else(PoisonError::into_inner), _keep: keep })
    }

    /// What it has under way of collectives that return a request.
    pub(super) fn lane(&self) -> Option<&nonblocking::Id> {
        self.lane.as_ref()
    }

    /// Whether all ranks of `comm`, of which this is, have come. Those of MPI_COMM_WORLD do so in MPI_Init,
    /// and are waited for in case they are late with that; those of another communicator do so in the
    /// collective that asks, if they have this library.
    ///
    /// # Safety
    /// `comm` is that communicator, and the call one of its collectives.
    pub(super) unsafe fn have_met(&self, board: &mut Side, library: &Library, comm: Handle) -> bool {
        *self.met.get_or_init(|| {
            let (abi, world) = (&library.abi, library.abi.handles.world);
            // SAFETY: the caller's promise; so below.
            let of_world = unsafe { get(world) }.filter(|_| comm != world);
            let limit = match of_world {
                None => LATE,
                Some(state) => {
                    // SAFETY: MPI_COMM_WORLD.
                    let meet = |board: &mut Side| unsafe { board.meet(abi, world, LATE) };
                    let met = || state.board().is_some_and(|mut board| meet(&mut board));
                    if *state.met.get_or_init(met) { LIMIT } else { Duration::ZERO }
                }
            };
            // SAFETY: the caller's promise.
            unsafe { board.meet(abi, comm, limit) }
        })
    }
}

/// How long ranks are waited for that are about to leave MPI_Init, and those that are in the same collective.
const LATE: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(60);

/// 128 bits of anything, the same in each process that has the same library.
fn name_of(of: impl Hash) -> u128 {
    let half = |n: u8| {
        let mut hasher = DefaultHasher::new();
        (n, env!("CARGO_PKG_VERSION")).hash(&mut hasher);
        of.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

/// What the processes that start ranks are called: 15 characters are in /proc.
const LAUNCHERS: [&str; 10] = [
    "mpirun",
    "mpiexec",
    "orterun",
    "orted",
    "prterun",
    "prted",
    "mpiexec.hydra",
    "hydra_pmi_proxy",
    "hydra_bstrap_pr",
    "slurmstepd",
];

/// The name of MPI_COMM_WORLD: of the launcher, and of what the ranks have to have alike.
fn name_of_world(ranks: usize, way: Way) -> Option<u128> {
    let launcher = ipc::process::ancestor(|name| LAUNCHERS.contains(&name))?;
    // Of jobs that one launcher has started at once.
    let jobs = ["PMIX_NAMESPACE", "SLURM_STEP_ID", "PMI_JOBID"].map(std::env::var_os);
    let job = (launcher.process, launcher.namespace, jobs, ranks);
    Some(match way {
        Way::Nccl => name_of((job, settings::nccl_least(), Nccl::open(Vendor::Nvidia).ok()?.version())),
        Way::Devices => {
            let least = (settings::reduce_least(), settings::move_least());
            name_of((job, "devices", least, settings::reduce_memory()))
        }
    })
}

unsafe fn make_world(library: &Library, way: Way, is_init: bool) -> Option<State> {
    let abi = &library.abi;
    let mut parent = 0usize;
    // SAFETY: valid places.
    unsafe {
        let group = Group::of(abi.handles.world).ok()?;
        // Processes that a program has started are of the same launcher.
        pmpi!("Comm_get_parent", &raw mut parent).ok()?;
        if group.local < 2 || abi.handle_at((&raw const parent) as usize, 0) != abi.handles.comm_null {
            return None;
        }
        let at = Rank { rank: group.rank as usize, size: group.local };
        let (world, mut state) = (abi.handles.world, State::new(name_of_world(at.size, way)?, at));
        // NCCL is opened by the first collective.
        if way == Way::Devices && is_init {
            let is_possible = settings::nonblocking() && nonblocking::is_possible(library);
            let meet = |mut board: Held<'_>| board.meet_in_init(is_possible, abi, world);
            if state.board().is_some_and(meet) {
                let lane = nonblocking::open(library, state.board().as_deref_mut(), at, world);
                state.lane = lane;
            }
        }
        Some(state)
    }
}

fn key() -> Option<c_int> {
    static KEY: OnceLock<Option<c_int>> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key: c_int = 0;
        let (copy, delete) = (crate::shape::no_copy as *const (), dropped as *const ());
        // SAFETY: valid places, and functions of the types that MPI_Comm_create_keyval takes.
        unsafe { pmpi!("Comm_create_keyval", copy, delete, &raw mut key, 0usize) }.ok()?;
        Some(key)
    })
}

/// MPI_Comm_delete_attr_function.
unsafe extern "C" fn dropped(_: usize, _: usize, state: *mut c_void, _: *mut c_void) -> c_int {
    // SAFETY: the value was made by `Arc::into_raw`, and the attribute is gone.
    let _ = c_abi::caught(|| drop(unsafe { Arc::from_raw(state.cast::<State>()) }));
    0
}

unsafe fn get(comm: Handle) -> Option<Arc<State>> {
    let (mut value, mut flag): (*const State, c_int) = (std::ptr::null(), 0);
    // SAFETY: valid places; the caller's promise. The value is one that `Arc::into_raw` made, which the
    // attribute holds while the communicator is there.
    unsafe {
        pmpi!("Comm_get_attr", comm, key()?, &raw mut value, &raw mut flag).ok()?;
        if flag == 0 || value.is_null() {
            return None;
        }
        Arc::increment_strong_count(value);
        Some(Arc::from_raw(value))
    }
}

unsafe fn set(comm: Handle, state: State) -> Option<Arc<State>> {
    let state = Arc::new(state);
    let value = Arc::into_raw(state.clone());
    // SAFETY: the caller's promise. The attribute has one reference, or it is taken back.
    unsafe {
        if pmpi!("Comm_set_attr", comm, key()?, value).is_err() {
            drop(Arc::from_raw(value));
            return None;
        }
    }
    Some(state)
}

/// What is kept of a communicator.
///
/// # Safety
/// `comm` is one.
pub(super) unsafe fn state_of(library: &Library, comm: Handle) -> Option<Arc<State>> {
    // SAFETY: the caller's promise.
    unsafe { known(library, comm, false) }
}

/// Has MPI_COMM_WORLD known, in MPI_Init.
///
/// # Safety
/// All ranks are there.
pub(super) unsafe fn begin(library: &Library) {
    // SAFETY: the caller's promise.
    unsafe { known(library, library.abi.handles.world, true) };
}

unsafe fn known(library: &Library, comm: Handle, is_init: bool) -> Option<Arc<State>> {
    static WORLD: Mutex<bool> = Mutex::new(false);
    // SAFETY: the caller's promise; so below.
    unsafe {
        if comm == library.abi.handles.comm_null {
            return None;
        }
        if comm != library.abi.handles.world {
            return get(comm);
        }
        let mut tried = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *tried, true) {
            return get(comm);
        }
        set(comm, make_world(library, way_of(library)?, is_init)?)
    }
}

/// A communicator was made of another by all ranks of that; or none for this rank.
///
/// # Safety
/// Both are communicators.
pub(crate) unsafe fn made(library: &Library, parent: Handle, comm: Option<Handle>) {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(of) = state_of(library, parent) else { return };
        let number = of.made.fetch_add(1, Relaxed);
        let Some(comm) = comm else { return };
        let Some((at, ranks)) = ranks_in(parent, comm).filter(|(at, _)| at.size > 1) else { return };
        let mut state = State::new(name_of((of.name, number, ranks)), at);
        if of.lane.is_some() {
            // All ranks are in this call.
            let lane = nonblocking::open(library, state.board().as_deref_mut(), at, comm);
            state.lane = lane;
        }
        let made = set(comm, state);
        if way_of(library) == Some(Way::Nccl) {
            // NCCL waits for no rank that comes later.
            made.map(|state| state.board().is_some());
        }
    }
}

/// This process in a communicator, and the ranks of another that its ranks are.
unsafe fn ranks_in(parent: Handle, comm: Handle) -> Option<(Rank, Vec<c_int>)> {
    let (mut own, mut of) = (0usize, 0usize);
    // SAFETY: valid places; the caller's promise. The groups are freed here.
    unsafe {
        let group = Group::of(comm).ok()?;
        let all: Vec<c_int> = (0..group.local as c_int).collect();
        let mut ranks = vec![0 as c_int; all.len()];
        pmpi!("Comm_group", comm, &raw mut own).ok()?;
        let got = pmpi!("Comm_group", parent, &raw mut of).and_then(|()| {
            pmpi!("Group_translate_ranks", own, all.len(), all.as_ptr(), of, ranks.as_mut_ptr())
        });
        let _ = pmpi!("Group_free", &raw mut own);
        if of != 0 {
            let _ = pmpi!("Group_free", &raw mut of);
        }
        got.ok()?;
        Some((Rank { rank: group.rank as usize, size: group.local }, ranks))
    }
}

/// Lets go of MPI_COMM_WORLD's, before MPI_Finalize.
///
/// # Safety
/// The MPI is there.
pub(crate) unsafe fn finish(library: &Library) {
    let world = library.abi.handles.world;
    // SAFETY: the caller's promise; so below.
    unsafe { nonblocking::drain(library) };
    // SAFETY: as above.
    if unsafe { get(world) }.is_some() {
        if let Some(key) = key() {
            // SAFETY: as above.
            let _ = unsafe { pmpi!("Comm_delete_attr", world, key) };
        }
    }
    messages::finish();
    nonblocking::finish(library);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn communicators_have_names_of_their_own() {
        let names = [
            name_of((1u128, 0u64, vec![0, 1])),
            name_of((1u128, 1u64, vec![0, 1])),
            name_of((1u128, 0u64, vec![2, 3])),
            name_of((2u128, 0u64, vec![0, 1])),
        ];
        assert_eq!(names[0], name_of((1u128, 0u64, vec![0, 1])));
        for (n, name) in names.iter().enumerate() {
            assert!(names[n + 1..].iter().all(|other| other != name));
        }
        assert_ne!(names[0] >> 64, names[0] & u128::from(u64::MAX));
    }
}
