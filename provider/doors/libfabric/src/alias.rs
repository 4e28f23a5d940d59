//! Another name for the provider, for programs that take none but those of a list of their own.
//!
//! The core filters by the name in `fi_provider` alone, and writes that into every answer: so one process
//! has the provider under one name, this or `strait`.

use std::ffi::{CStr, CString};

use libfabric_sys as fi;

/// Declares FI_STRAIT_ALIAS, reads it, and gives the provider that name if there is one.
///
/// # Safety
/// `provider` is the structure that fi_prov_ini is about to return, with the name `strait`; all parameters
/// are declared, because the core takes the names of their variables from it.
pub(crate) unsafe fn read(core: &fi::Core, provider: *mut fi::fi_provider) {
    let help = CString::new(settings::ALIAS.description()).unwrap_or_default();
    // SAFETY: the caller's promise; the name is defined here alone.
    let asked = unsafe { core.param_string(provider, c"alias", &help) };
    let Some(asked) = asked else { return };
    let name = asked.to_string_lossy().into_owned();
    if name == "strait" || name.is_empty() {
        return;
    }
    if let Some(complaint) = settings::ALIAS.check(&name).complaint {
        return log::warn!("{complaint}");
    }
    log::warn!(
        "FI_STRAIT_ALIAS={name}: the provider strait goes by the name {name} in this process. Unset the variable for programs that do not need it"
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
    fn a_filter_without_the_name_is_found() {
        assert!(passes("efa", "efa") && passes("tcp,EFA", "efa") && passes("^tcp", "efa"));
        assert!(!passes("strait", "efa") && !passes("^efa", "efa"));
    }
}
