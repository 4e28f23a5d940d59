//! What a tier above adds to a job: control messages of its own, which are answered by whichever call makes
//! progress, and operations of its own.

use std::any::Any;
use std::fmt;

use super::net::Net;
use crate::{Error, Grant, Rank, Token};

/// Tokens from here on are of the tier above: numbers of streams have 31 bits.
pub(crate) const TOKENS: u64 = 1 << (32 + 31);

/// A tier above, which is called with the core's lock held.
pub(crate) trait Service: Any + Send + fmt::Debug {
    /// Whether a control message is one of its own.
    fn takes(&self, bytes: &[u8]) -> bool;

    /// A control message of its own. The bytes are not to be trusted.
    fn control(&mut self, net: &mut Net, from: Rank, bytes: &[u8], grants: Vec<Grant>);

    /// An operation is over whose token is `TOKENS` at least.
    fn completed(&mut self, net: &mut Net, token: Token, outcome: Result<u64, Error>);

    /// A peer has ended.
    fn gone(&mut self, net: &mut Net, peer: Rank);

    /// Itself, for its own calls.
    fn as_any(&mut self) -> &mut dyn Any;
}
