//! Settings. Their names do not start with UCX_, or UCX would warn of variables it does not know.
//!
//! | variable | default | |
//! |---|---|---|
//! | `STRAIT_UCX_LOG` | warn | off, error, warn, info, debug, trace |
//! | `STRAIT_UCX_RING` | 508K to 4 peers, 252K to 12, 64K to others | bytes of a peer's ring, with K or M |
//! | `STRAIT_UCX_CMA` | y | n: never process_vm_readv(2) |
//! | `STRAIT_UCX_FAULT_HANDLER` | y | n: no handler of SIGSEGV and SIGBUS; peers' requests by CMA |
//! | `STRAIT_UCX_REPORT` | n | y, or a file's name: a report of what was sent by which path |
//! | `STRAIT_UCX_CHECK` | y | n: serve a UCX also if its tables look different from what its release has |

use std::sync::OnceLock;

use ::log::LevelFilter;
use link::usage::Place;

#[derive(Clone, Debug)]
pub(crate) struct Params {
    pub(crate) log: LevelFilter,
    /// Bytes of the ring to any peer, and to the first few.
    pub(crate) rings: (usize, usize),
    pub(crate) cma: bool,
    pub(crate) fault_handler: bool,
    pub(crate) check: bool,
    /// Where to say what was sent.
    pub(crate) report: Option<Place>,
}

/// Bytes of a ring: room for several messages of the longest sort that goes through it.
const RING: usize = 64 << 10;

pub(crate) fn get() -> &'static Params {
    static PARAMS: OnceLock<Params> = OnceLock::new();
    PARAMS.get_or_init(|| {
        let params = Params {
            log: read("LOG", LevelFilter::Warn, |v| v.parse().ok()),
            rings: read("RING", (RING, link::LONG_RING), |text| {
                let ring = size(text)?.clamp(link::MIN_RING.max(32 << 10), 16 << 20);
                Some((ring, ring))
            }),
            cma: read("CMA", true, flag),
            fault_handler: read("FAULT_HANDLER", true, flag),
            check: read("CHECK", true, flag),
            report: read("REPORT", None, |text| Place::parse(text).ok()),
        };
        link::journal::open("UCX", env!("CARGO_PKG_VERSION"));
        crate::log::open(params.log);
        params
    })
}

fn read<T>(name: &str, default: T, parse: impl Fn(&str) -> Option<T>) -> T {
    let name = format!("STRAIT_UCX_{name}");
    let Some(value) = std::env::var_os(&name) else { return default };
    // What is no text is no value.
    value.to_str().and_then(|text| parse(text.trim())).unwrap_or_else(|| {
        let text = value.to_string_lossy();
        crate::log::line(format_args!("strait: {name}={text} is not understood and ignored"));
        default
    })
}

fn flag(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "y" | "yes" | "1" | "on" | "true" => Some(true),
        "n" | "no" | "0" | "off" | "false" => Some(false),
        _ => None,
    }
}

fn size(text: &str) -> Option<usize> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 10),
        b'm' | b'M' => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        assert_eq!(
            (size("64K"), size("2m"), size("100"), size("K"), size("")),
            (Some(65536), Some(2 << 20), Some(100), None, None)
        );
        assert_eq!((flag("Y"), flag("off"), flag("maybe")), (Some(true), Some(false), None));
    }
}
