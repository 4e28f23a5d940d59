//! What `strait doctor` gets to know of this process: see [`link::journal`]. Without its variable nothing
//! here does anything.

use engine::Completion;
use libc::c_int;
use libfabric_sys as fi;
use link::usage::json_string;
use wire::Addr;

/// Opens it where STRAIT_JOURNAL is set.
pub(crate) fn open() {
    link::journal::open("libfabric", &format!("{} (protocol {})", env!("CARGO_PKG_VERSION"), wire::VERSION));
}

/// Which call the body of an entry point is of, by the name of its function.
fn call(of: &str) -> String {
    const CALLS: [(&str, &str); 13] = [
        ("info::getinfo", "fi_getinfo"),
        ("fabric::open::", "fi_fabric"),
        ("domain::open::open", "fi_domain"),
        ("domain::open::endpoint", "fi_endpoint"),
        ("domain::open::srx_ctx", "fi_srx_context"),
        ("av::open", "fi_av_open"),
        ("cq::open", "fi_cq_open"),
        ("cntr::open", "fi_cntr_open"),
        ("ep::control", "fi_enable"),
        ("ep::bind", "fi_ep_bind"),
        ("mr::", "fi_mr_reg"),
        ("eq::open", "fi_eq_open"),
        ("ep::cm::getname", "fi_getname"),
    ];
    let name = of.strip_prefix("strait_fi::").unwrap_or(of);
    let name = name.split("::{{closure}}").next().unwrap_or(name);
    let known = CALLS.iter().find(|(begin, _)| name.starts_with(begin));
    known.map_or_else(|| name.into(), |(_, call)| (*call).into())
}

/// An entry point fails that opens, binds, controls or closes something: with this code, and its text. What
/// callers use in the ordinary course of things is left out.
#[cold]
#[inline(never)]
pub(crate) fn failed(function: &str, code: c_int, text: fn(c_int) -> String) {
    if link::journal::is_open() && !is_ordinary(code) {
        link::journal::note_failed(&call(function), &text(code));
    }
}

/// FI_ETOOSMALL is how fi_getname(3) says the length of a name.
fn is_ordinary(code: c_int) -> bool {
    [
        fi::FI_EAGAIN,
        fi::FI_EAVAIL,
        fi::FI_ETIMEDOUT,
        fi::FI_ENOENT,
        fi::FI_ENOSYS,
        fi::FI_ENOPROTOOPT,
        fi::FI_ETOOSMALL,
    ]
    .contains(&code)
}

/// The application reads a completion with an error.
pub(crate) fn failed_completion(failed: &Completion) {
    let Some(error) = failed.err.filter(|_| link::journal::is_open()) else { return };
    // The application expects this one.
    if error != engine::Error::Cancelled && error != engine::Error::NoMessage {
        let what = format!(
            "a completion ({:?})",
            failed.what.iter_names().map(|(name, _)| name).collect::<Vec<_>>()
        );
        link::journal::note_failed(&what.replace(['"', '[', ']'], "").replace(", ", " "), &error.to_string());
    }
}

/// An endpoint was opened.
pub(crate) fn endpoint(name: &Addr) {
    if link::journal::is_open() {
        link::journal::note("endpoint", &[("address", json_string(&name.to_string()))]);
    }
}

/// What the log of this process has at least, for the journal.
pub(crate) fn level() -> log::LevelFilter {
    if link::journal::is_open() { log::LevelFilter::Info } else { log::LevelFilter::Off }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_named_as_their_manual_pages() {
        for (function, name) in [
            ("strait_fi::domain::open::endpoint::{{closure}}", "fi_endpoint"),
            ("strait_fi::info::getinfo::{{closure}}", "fi_getinfo"),
            ("strait_fi::ep::control::{{closure}}", "fi_enable"),
            ("strait_fi::ep::cm::getname::{{closure}}", "fi_getname"),
            ("strait_fi::wait::open::{{closure}}", "wait::open"),
        ] {
            assert_eq!(call(function), name);
        }
        assert!(is_ordinary(fi::FI_ETOOSMALL) && !is_ordinary(fi::FI_ENOMEM));
    }
}
