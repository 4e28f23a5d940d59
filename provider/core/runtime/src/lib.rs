//! What a provider needs around the engine, whatever interface it offers: the lock of a domain, blocking
//! calls and what wakes them, automatic progress, and what becomes of a domain that a panic was inside.
//!
//! | module | what it holds |
//! |---|---|
//! | `domain` | [`Runtime`]: an engine under its lock, and those that sleep until something happens in it |
//! | `lock` | the lock |
//! | `wait` | [`Wait`]: the descriptor that a thread sleeps on, and how it is woken |
//! | `progress`, `thread` | the thread of a domain with automatic progress |
//! | `exit`, `threads` | exit(3) with endpoints open; whether other threads run |
//! | `poison` | panics: what is logged, and what later calls get |
//!
//! # Sleeping
//!
//! A thread that finds nothing registers itself and has all links of the domain *armed*, both under the lock,
//! and sleeps on its [`Wait`] after that. So whatever happens from then on wakes it: a peer by the link's
//! descriptor, another thread of this process by the look that every [`Guard`] takes when it goes. Before
//! each look for a reason to wake, earlier wake-ups are forgotten ([`Wait::lower`]), so that one in between
//! is not lost. [`Runtime::block`] has this order; an application that sleeps on the descriptor itself asks
//! [`Runtime::try_wait`] first, which forgets them when it has registered the sleeper, in the lock: several
//! threads may sleep on one descriptor. Blocking calls on the same object sleep on descriptors of their own,
//! and neither takes the other's wake-ups.
//!
//! So a sleeper needs no time limit of its own, with one exception. A poll by another thread disarms the
//! links again, and may be that thread's last. To arm them in each such call would cost system calls in each.
//! So a thread that leaves links that are not armed, while others sleep, sets the timers of these ([`Wait`]):
//! a sleeper looks, and arms the links, a millisecond after the last such call, unless another one armed them
//! before. Where there is a progress thread, that one does so. Nothing wakes in a process in which nothing
//! happens, but for the links' own timers.
//!
//! # Panics
//!
//! A guard that goes while its thread panics poisons the domain: the engine may be in any state. Later calls
//! of [`Runtime::enter`] fail with [`Error::Poisoned`], those of [`Runtime::lock`] unwind without a message.
//! Sleepers are woken and the progress thread ends. [`Runtime::take_back`] and [`Runtime::close_in`] close
//! what is in the domain all the same: its links end, and nothing else of the engine is looked at. The
//! provider catches what unwinds before it leaves the library, with [`catch`] or with `catch_unwind` and
//! [`caught`].

mod domain;
mod error;
mod exit;
mod lock;
mod observer;
mod poison;
mod progress;
mod thread;
mod threads;
mod wait;
mod watched;

pub use domain::{Guard, Progress, Runtime};
pub use error::Error;
pub use exit::settle_at_exit;
pub use observer::{Observed, observable, observe, start_observer};
pub use poison::{Poisoned, catch, caught};
pub use progress::{Host, start};
pub use wait::{Attached, Deadline, Wait};
pub use watched::{Idle, Step, Watched};
