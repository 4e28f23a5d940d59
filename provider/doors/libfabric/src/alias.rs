//! Another name for the provider, for programs that take none but those of a list of their own.
//!
//! The core filters by the name in `fi_provider` alone, and writes that into every answer: so one process
//! has the provider under one name, this or `strait`.

use std::ffi::{CStr, CString};

use libfabric_sys as fi;

/// Longest name.
const MOST: usize = 32;
/// Names that begin like this are those of layers to the core.
const LAYERS: [&str; 3] = ["ofi_", "off_", "lnx"];

/// Whether it can be a provider's name; in `Err`, why not.
fn check(name: &str) -> Result<(), &'static str> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-');
    if name.is_empty() || name.len() > MOST || !name.bytes().all(plain) {
        return Err("a name is of up to 32 small letters, digits, _ and -");
    }
    if LAYERS.iter().any(|l| name.starts_with(l)) {
        return Err("such names are those of layered providers");
    }
    Ok(())
}

/// Declares FI_STRAIT_ALIAS, reads it, and gives the provider that name if there is one.
///
/// # Safety
/// `provider` is the structure that fi_prov_ini is about to return, with the name `strait`; all parameters
/// are declared, because the core takes the names of their variables from it.
pub(crate) unsafe fn read(core: &fi::Core, provider: *mut fi::fi_provider) {
    // SAFETY: the caller's promise; the name is defined here alone.
    let asked = unsafe {
        core.param_string(
            provider,
            c"alias",
            c"The provider goes by this name instead of strait, for programs that take none but those they list, such as \
              efa or cxi. A provider of libfabric's own with that name keeps it, unless FI_PROVIDER_PATH says \
              +/path/to/libstrait-fi.so (default: none)",
        )
    };
    let Some(asked) = asked else { return };
    let name = asked.to_string_lossy().into_owned();
    if name == "strait" || name.is_empty() {
        return;
    }
    if let Err(why) = check(&name) {
        log::warn!("FI_STRAIT_ALIAS={name} is not taken: {why}. The provider goes by the name strait");
        return;
    }
    log::warn!(
        "FI_STRAIT_ALIAS={name}: the provider strait goes by the name {name} in this process. It reaches no other host. \
         Unset the variable for programs that do not need it"
    );
    if let Some(filter) = std::env::var("FI_PROVIDER").ok().filter(|f| !passes(f, &name)) {
        log::warn!("FI_PROVIDER={filter} leaves out {name}: set FI_PROVIDER={name}, or unset it");
    }
    // SAFETY: the caller's promise: the core has not seen the structure yet.
    unsafe { (*provider).name = keep(asked).as_ptr() };
}

/// Whether a filter of the core's, names with commas and perhaps a ^ in front, lets a name through.
fn passes(filter: &str, name: &str) -> bool {
    let (negated, names) = filter.strip_prefix('^').map_or((false, filter), |rest| (true, rest));
    names.split(',').any(|n| n.eq_ignore_ascii_case(name)) != negated
}

/// It is read as long as the process lives.
fn keep(name: CString) -> &'static CStr {
    Box::leak(name.into_boxed_c_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_core_providers_are_taken() {
        for good in ["efa", "cxi", "efa-direct", "my_net2"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in
            ["", "tcp;ofi_rxm", "^efa", "a,b", "EFA", "a b", "ofi_rxm", "off_coll", "lnx", &"x".repeat(33)]
        {
            assert!(check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_filter_without_the_name_is_found() {
        assert!(passes("efa", "efa") && passes("tcp,EFA", "efa") && passes("^tcp", "efa"));
        assert!(!passes("strait", "efa") && !passes("^efa", "efa"));
    }
}
