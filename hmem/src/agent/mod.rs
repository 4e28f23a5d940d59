//! Copies without a call into CUDA by this process: an agent, a process of its own, makes them.
//!
//! CUDA's calls take locks that are one process's. A thread in cudaFree holds one while it waits for all
//! kernels of a device; if such a kernel waits for a transfer, and to start that or to find it over takes the
//! lock, neither ends. An agent has locks, contexts and streams of its own. It has the registered memory of
//! its user open by the handles that any other process gets, and peers' memory by theirs. The user sends it a
//! packet for each copy and reads a word of shared memory until that says that the copy is over. Host memory
//! goes through buffers of that shared memory.
//!
//! It is on or off for a process, once and for all ([`start`]). From then on memory is a device's if it is
//! registered; registration exports the handles; no later call reaches the driver. If the agent ends,
//! operations with device memory fail.
//!
//! | module | what it holds |
//! |---|---|
//! | `message` | what the two exchange |
//! | `connection` | the agent, as its user has it |
//! | `registered` | which memory it knows |
//! | `copy` | copies |

mod connection;
mod copy;
mod message;
mod registered;

pub(crate) use connection::{Bounce, active};
pub(crate) use copy::{CONTEXT, copy_now, import, start as start_copy};
pub(crate) use message::{BOUNCE, BOUNCES, BOUNCES_AT, HOST, LONGEST, Message, Move, SHARED, VERSION, WORDS};
pub(crate) use registered::{exports, is_registered, is_still, number, register};

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::error::Error;

/// Starts the agent of this process, by a command that ends up in [`crate::agent_process::serve`], and has it
/// open what is registered. If it is there already, that is as well. On an error all is as it was.
pub fn start(command: Command) -> Result<(), Error> {
    static STARTING: Mutex<()> = Mutex::new(());
    let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(agent) = active() {
        return agent.check();
    }
    let agent = connection::start(command)?;
    if let Err(why) = registered::open_all(&agent) {
        registered::forget_all();
        return Err(why);
    }
    connection::set(agent);
    // What was registered since, and that cannot be opened, fails when it is used.
    active().map_or(Ok(()), |agent| registered::open_all(agent).or(Ok(())))
}

/// Whether there is one, or was.
pub fn is_on() -> bool {
    active().is_some()
}
