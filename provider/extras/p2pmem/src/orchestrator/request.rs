//! A request for memory.

use std::sync::Arc;

use crate::address::Address;
use crate::rules::Rules;

/// A device that is to reach memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    pub(crate) address: Address,
    /// Its address, and what drivers call what they made of it.
    pub(crate) names: Vec<String>,
}

impl Client {
    /// Its address.
    pub fn name(&self) -> &str {
        &self.names[0]
    }
}

/// A request for memory.
#[derive(Clone, Debug)]
pub struct Request {
    /// The devices that are to reach it. With none, any publisher will do.
    pub clients: Vec<Client>,
    /// Bytes; whole pages are given.
    pub len: u64,
    /// A power of two; at least a page.
    pub align: u64,
    /// In how many pieces it may be.
    pub segments: usize,
    /// The user that it is for.
    pub uid: u32,
    /// A name that rules can refer to.
    pub job: String,
    /// Whether host memory will do if nothing else is to be had.
    pub host: bool,
    /// Whether memory will do that processes of other users have published, and can read and write.
    pub others: bool,
    /// Rules of the requesting process, behind the orchestrator's.
    pub rules: Option<Arc<Rules>>,
}

impl Default for Request {
    fn default() -> Request {
        Request {
            clients: Vec::new(),
            len: 0,
            align: 1,
            segments: 1,
            // SAFETY: geteuid(2) cannot fail and touches no memory.
            uid: unsafe { libc::geteuid() },
            job: String::new(),
            host: true,
            others: false,
            rules: None,
        }
    }
}
