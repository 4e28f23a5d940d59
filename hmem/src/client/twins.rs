//! Rules of [`super::registrations`] and of [`super::revocable`] that a twin forgets, each of which a test
//! under loom finds.

/// Whether a twin forgets this rule; never outside of loom's tests.
macro_rules! forgets {
    ($all:expr, $twin:ident) => {{
        #[cfg(all(test, loom))]
        let forgets = $all.twin == $crate::client::twins::Twin::$twin;
        #[cfg(not(all(test, loom)))]
        let forgets = false;
        forgets
    }};
}
pub(super) use forgets;

/// A rule that a twin forgets.
#[cfg(all(test, loom))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Twin {
    Sound,
    /// A registration that ends leaves the list before its callbacks.
    LeavesListFirst,
    /// Unregistering does not wait for callbacks outside registrations.
    Running,
    /// What was invalidated meanwhile is registered.
    PinsEnded,
    /// What is acquired while other registered memory at the address is invalidated is not looked at again.
    StaleOnce,
    /// Giving back does not wait for operations.
    InUse,
    /// The last operation that uses a registration wakes nothing.
    Silent,
    /// What devices have registered is given back before it is taken from them.
    RevokesLast,
    /// The end of an import does not wait for a thread that takes its memory from the device.
    EndsUnwaited,
    /// A registration with an adapter ends before the queue pairs are in error whose requests name it.
    DeregistersFirst,
    /// The queue pair of a request that begins is not put in error.
    BeginsUnseen,
    /// A request begins that names what was taken back.
    BeginsRevoked,
    /// What was taken back meanwhile is registered with the adapter.
    RegistersRevoked,
    /// The peer's queue pair is not put in error where the end of its registration is refused.
    KeepsPeer,
}
