//! What there is of callers that were accepted and have not confirmed.

use ipc::Unshared;
use meet::Message;
use wire::session::Proven;

use crate::tcp::meet::agreement::Conn;

/// A connection that its caller has not confirmed yet.
#[derive(Debug)]
pub(in crate::tcp) struct Promise {
    pub(in crate::tcp) fd: Unshared,
    pub(in crate::tcp) proven: Box<Proven>,
    pub(in crate::tcp) conn: Conn,
    pub(in crate::tcp) message: Message,
}
