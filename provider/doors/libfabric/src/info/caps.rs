//! Capabilities: what there is, and what an application gets of it.

use libfabric_sys::*;

/// Capabilities that hints have to name.
pub(crate) const PRIMARY: u64 =
    FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_COLLECTIVE | FI_DIRECTED_RECV | FI_TAGGED_DIRECTED_RECV;
/// What an application that names no capability does not get, for it is not written for it.
const ONLY_ASKED: u64 = FI_TAGGED_DIRECTED_RECV | FI_COLLECTIVE;
/// What restricts a primary capability.
const OF_MESSAGES: u64 = FI_SEND | FI_RECV;
const OF_MEMORY: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
const WAYS: [(u64, u64); 2] = [(FI_MSG | FI_TAGGED, OF_MESSAGES), (FI_RMA | FI_ATOMIC, OF_MEMORY)];
/// Capabilities that cost nothing, granted in any case.
const SECONDARY: u64 =
    FI_MULTI_RECV | FI_SOURCE | FI_RMA_EVENT | FI_TRIGGER | FI_FENCE | FI_LOCAL_COMM | FI_REMOTE_COMM;

/// All there is.
pub(crate) const ALL: u64 = PRIMARY | OF_MESSAGES | OF_MEMORY | SECONDARY | FI_HMEM | FI_XPU;
/// The part that makes sense in `fi_tx_attr`, `fi_rx_attr`, `fi_domain_attr`.
pub(crate) const TX: u64 = FI_MSG
    | FI_TAGGED
    | FI_RMA
    | FI_ATOMIC
    | FI_COLLECTIVE
    | FI_SEND
    | FI_READ
    | FI_WRITE
    | FI_TRIGGER
    | FI_FENCE
    | FI_HMEM;
pub(crate) const RX: u64 = FI_MSG
    | FI_TAGGED
    | FI_RMA
    | FI_ATOMIC
    | FI_COLLECTIVE
    | FI_DIRECTED_RECV
    | FI_TAGGED_DIRECTED_RECV
    | FI_RECV
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_MULTI_RECV
    | FI_SOURCE
    | FI_RMA_EVENT
    | FI_TRIGGER
    | FI_HMEM;
pub(crate) const DOMAIN: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;

/// The capabilities granted to hints with `asked` (0: all there are).
pub(crate) fn granted(asked: u64) -> u64 {
    // Device memory is found by its address, with or without FI_HMEM; the flag is answered on request.
    expand(primary(asked) | asked & (OF_MESSAGES | OF_MEMORY)) | SECONDARY | asked & (FI_HMEM | FI_XPU)
}

/// The primary capabilities of an answer. Where the application named none that moves data, those that its
/// modifiers restrict; all, if it named no modifier: no call does anything on an endpoint without one.
fn primary(asked: u64) -> u64 {
    let is_named = WAYS.iter().any(|(what, _)| asked & what != 0);
    let restricted = WAYS.iter().filter(|(_, ways)| asked & ways != 0).fold(0, |all, (what, _)| all | what);
    asked & PRIMARY
        | match restricted {
            _ if is_named => 0,
            0 => PRIMARY & !ONLY_ASKED,
            _ => restricted,
        }
}

/// Names the directions of each primary capability where the application left them open.
pub(crate) fn expand(caps: u64) -> u64 {
    WAYS.iter().fold(
        meant(caps),
        |caps, (what, ways)| {
            if caps & what != 0 && caps & ways == 0 { caps | ways } else { caps }
        },
    )
}

/// Without directions of what is not there.
fn meant(caps: u64) -> u64 {
    WAYS.iter().fold(caps, |caps, (what, ways)| if caps & what == 0 { caps & !ways } else { caps })
}

/// What is left of `granted` for a queue that an attribute structure restricts to `asked`.
pub(crate) fn restricted(granted: u64, asked: u64) -> u64 {
    if asked == 0 { granted } else { meant(granted & (expand(asked) | SECONDARY)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primary_capabilities_come_as_asked() {
        let caps = granted(FI_RMA | FI_ATOMIC);
        assert_eq!(caps & PRIMARY, FI_RMA | FI_ATOMIC);
        assert_eq!(caps & OF_MEMORY, OF_MEMORY);
        assert_eq!(caps & OF_MESSAGES, 0);
        assert_ne!(caps & FI_FENCE, 0);
    }

    #[test]
    fn what_a_queue_restricts_to_nothing_has_no_direction() {
        assert_eq!(restricted(granted(FI_ATOMIC), FI_RMA), SECONDARY);
        assert_eq!(restricted(granted(FI_ATOMIC), FI_ATOMIC | FI_READ), SECONDARY | FI_ATOMIC | FI_READ);
    }

    #[test]
    fn a_direction_asked_for_is_the_only_one() {
        let caps = granted(FI_TAGGED | FI_SEND);
        assert_eq!(caps & OF_MESSAGES, FI_SEND);
        assert_eq!(granted(0) & OF_MESSAGES, OF_MESSAGES);
        assert_eq!(granted(0) & (FI_TAGGED_DIRECTED_RECV | FI_COLLECTIVE), 0);
        assert_eq!(granted(FI_MSG | FI_COLLECTIVE) & PRIMARY, FI_MSG | FI_COLLECTIVE);
        assert_eq!(granted(FI_COLLECTIVE) & (FI_MSG | FI_COLLECTIVE), FI_MSG | FI_COLLECTIVE);
    }
}
