//! Settings. Their names do not start with UCX_, or UCX would warn of variables it does not know.
//!
//! The table is [`settings::OTHERS`], and docs/ucx.md for people.

use std::sync::OnceLock;

use ::log::LevelFilter;
use link::usage::Place;
use settings::{Reading, Setting};

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
        let env = |setting: &Setting| std::env::var_os(setting.variable());
        let (params, complaints) = interpret(|setting| env(setting).map(|value| setting.text(value)));
        link::journal::open("UCX", env!("CARGO_PKG_VERSION"));
        crate::log::open(params.log);
        let names: Vec<String> =
            std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
        let unknown = settings::unknown_of(names.iter().map(String::as_str), "STRAIT_UCX_");
        for line in complaints.into_iter().chain(unknown.into_iter().map(|unknown| unknown.line)) {
            log::warn!("{line}");
        }
        params
    })
}

/// The settings where `text` says what each was set to, and what there is to complain of.
fn interpret(text: impl Fn(&Setting) -> Option<Result<String, String>>) -> (Params, Vec<String>) {
    let mut complaints = Vec::new();
    let mut read = |setting: Setting| -> (String, Reading) {
        let text = match text(&setting) {
            Some(Ok(text)) => text,
            Some(Err(complaint)) => {
                complaints.push(complaint);
                String::new()
            }
            None => String::new(),
        };
        let reading = setting.check(&text);
        complaints.extend(reading.complaint.clone());
        (text, reading)
    };
    let ring = read(settings::UCX_RING).1.number().and_then(|n| usize::try_from(n).ok());
    let params = Params {
        log: read(settings::UCX_LOG).0.trim().parse().unwrap_or(LevelFilter::Warn),
        rings: ring.map_or((RING, link::LONG_RING), |ring| {
            let ring = ring.max(link::MIN_RING);
            (ring, ring)
        }),
        cma: read(settings::UCX_CMA).1.switch().unwrap_or(true),
        fault_handler: read(settings::UCX_FAULT_HANDLER).1.switch().unwrap_or(true),
        check: read(settings::UCX_CHECK).1.switch().unwrap_or(true),
        report: Place::parse(&read(settings::UCX_REPORT).0).ok().flatten(),
    };
    (params, complaints)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(set: &[(&str, &str)]) -> (Params, Vec<String>) {
        interpret(|s| set.iter().find(|(name, _)| *name == s.name).map(|(_, text)| Ok((*text).to_owned())))
    }

    #[test]
    fn values() {
        let (p, complaints) = with(&[
            ("STRAIT_UCX_RING", "64K"),
            ("STRAIT_UCX_CMA", "N"),
            ("STRAIT_UCX_LOG", "info"),
            ("STRAIT_UCX_REPORT", "y"),
        ]);
        assert_eq!((p.rings, p.cma, p.log), ((65536, 65536), false, LevelFilter::Info));
        assert_eq!((p.report, p.check, complaints), (Some(Place::Stderr), true, vec![]));
        assert_eq!(with(&[("STRAIT_UCX_RING", "1K")]).0.rings, (32 << 10, 32 << 10));
        assert_eq!(with(&[]).0.rings, (RING, link::LONG_RING));
    }

    #[test]
    fn what_is_not_understood_leaves_the_default() {
        for (name, text, word) in [
            ("STRAIT_UCX_CMA", "nope", "the default is used (yes)"),
            ("STRAIT_UCX_LOG", "wran", "is warn meant?"),
            ("STRAIT_UCX_RING", "K", "32K to 16M"),
            ("STRAIT_UCX_REPORT", "maybe", "yes, no, or a file"),
        ] {
            let (p, complaints) = with(&[(name, text)]);
            assert!((p.cma, p.log, p.report) == (true, LevelFilter::Warn, None), "{name}");
            assert!(complaints.len() == 1 && complaints[0].contains(word), "{complaints:?}");
        }
    }
}
