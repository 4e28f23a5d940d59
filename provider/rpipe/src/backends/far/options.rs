//! How the links of this backend are opened.

use std::net::SocketAddr;
use std::time::Duration;

use link::OpenOptions;

/// A peer listens before it is known here. One that does not has left; for so long it is called again all the
/// same.
pub(super) const LISTENS: Duration = Duration::from_millis(500);
/// For how long peers wait for one that has no descriptor for them: until it has, or ends.
const LACKING: Duration = Duration::from_secs(24 * 3600);

pub(super) fn options() -> OpenOptions {
    OpenOptions {
        bind: Some(SocketAddr::new(link::primary_ip(false), 0)),
        eager: link::eager_size(),
        eager_in_a_row: link::eager_in_a_row(),
        eager_one_way: link::eager_one_way(),
        port: link::Port::Listens,
        connect_timeout: LISTENS,
        patience: LACKING,
        ..OpenOptions::default()
    }
}
