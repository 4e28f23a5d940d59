//! What the status of a completion means, and what an error of a call is said to be.

use rdma_sys as ibv;

/// The name of a status and, where something can be done about it, what.
pub(crate) fn text(status: ibv::ibv_wc_status) -> String {
    let (name, cure) = match status {
        ibv::IBV_WC_LOC_LEN_ERR => ("IBV_WC_LOC_LEN_ERR: a message is longer than its receive", ""),
        ibv::IBV_WC_LOC_QP_OP_ERR => ("IBV_WC_LOC_QP_OP_ERR: the device cannot do a request", ""),
        ibv::IBV_WC_LOC_ACCESS_ERR => ("IBV_WC_LOC_ACCESS_ERR: memory here may not be written so", ""),
        ibv::IBV_WC_BAD_RESP_ERR => {
            ("IBV_WC_BAD_RESP_ERR: the peer's device has answered something else", "")
        }
        ibv::IBV_WC_GENERAL_ERR => ("IBV_WC_GENERAL_ERR: the device reports an error", ""),
        ibv::IBV_WC_LOC_PROT_ERR => ("IBV_WC_LOC_PROT_ERR: memory here is not registered", ""),
        ibv::IBV_WC_MW_BIND_ERR => ("IBV_WC_MW_BIND_ERR: the device refuses a memory window", ""),
        ibv::IBV_WC_WR_FLUSH_ERR => ("IBV_WC_WR_FLUSH_ERR: the queue pair had failed before", ""),
        ibv::IBV_WC_REM_INV_REQ_ERR => ("IBV_WC_REM_INV_REQ_ERR: the peer's device refuses the request", ""),
        ibv::IBV_WC_REM_ACCESS_ERR => ("IBV_WC_REM_ACCESS_ERR: the peer's memory may not be accessed so", ""),
        ibv::IBV_WC_REM_OP_ERR => ("IBV_WC_REM_OP_ERR: the peer's device cannot do the request", ""),
        ibv::IBV_WC_RETRY_EXC_ERR => (
            "IBV_WC_RETRY_EXC_ERR: the peer's device does not answer",
            "; if no peer is reached, FI_STRAIT_VERBS_GID names a GID that is routed to them",
        ),
        ibv::IBV_WC_RNR_RETRY_EXC_ERR => ("IBV_WC_RNR_RETRY_EXC_ERR: the peer has posted no receive", ""),
        ibv::IBV_WC_FATAL_ERR => ("IBV_WC_FATAL_ERR: the device has failed", ""),
        ibv::IBV_WC_RESP_TIMEOUT_ERR => ("IBV_WC_RESP_TIMEOUT_ERR: the peer's device does not answer", ""),
        ibv::IBV_WC_REM_ABORT_ERR => ("IBV_WC_REM_ABORT_ERR: the peer has aborted", ""),
        other => return format!("completion status {other}"),
    };
    format!("{name}{cure}")
}

/// Whether the device had no access to memory of this side. `is_first`: the queue pair had not failed before;
/// soft RoCE has no other status for it.
pub(crate) fn is_own_memory(status: ibv::ibv_wc_status, is_first: bool) -> bool {
    match status {
        ibv::IBV_WC_LOC_PROT_ERR | ibv::IBV_WC_LOC_QP_OP_ERR | ibv::IBV_WC_LOC_ACCESS_ERR => true,
        ibv::IBV_WC_WR_FLUSH_ERR => is_first,
        _ => false,
    }
}

/// The call that refused, and its errno.
pub(crate) fn refused(e: ibv::Error) -> (&'static str, i32) {
    (e.call().unwrap_or("libibverbs"), e.errno())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_or_the_way_to_it_has_caused_says_nothing_of_memory_here() {
        for (status, first, later) in [
            (ibv::IBV_WC_LOC_PROT_ERR, true, true),
            (ibv::IBV_WC_WR_FLUSH_ERR, true, false),
            (ibv::IBV_WC_RETRY_EXC_ERR, false, false),
            (ibv::IBV_WC_REM_ACCESS_ERR, false, false),
        ] {
            assert_eq!(
                (is_own_memory(status, true), is_own_memory(status, false)),
                (first, later),
                "{status}"
            );
        }
    }

    #[test]
    fn each_status_has_its_name_and_a_cure_where_there_is_one() {
        assert!(text(ibv::IBV_WC_RETRY_EXC_ERR).contains("FI_STRAIT_VERBS_GID"));
        assert!(text(ibv::IBV_WC_WR_FLUSH_ERR).starts_with("IBV_WC_WR_FLUSH_ERR"));
        assert_eq!(text(999), "completion status 999");
    }
}
