//! Another name for the provider, for programs that take none but those of a list of their own.
//!
//! The core filters by the name in `fi_provider` alone, and writes that into every answer: so one process
//! has the provider under one name, this or `strait`.

use std::ffi::{CStr, CString};

use libfabric_sys as fi;

use crate::param;

/// Declares FI_STRAIT_ALIAS, reads it, and gives the provider that name if there is one.
///
/// # Safety
/// `provider` is the structure that fi_prov_ini is about to return, with the name `strait`; all parameters
/// are declared, because the core takes the names of their variables from it.
pub(crate) unsafe fn read(core: &fi::Core, provider: *mut fi::fi_provider) {
    // SAFETY: the caller's promise; the name is defined here alone.
    let Some(asked) = (unsafe { param::declared(core, provider, &settings::ALIAS) }) else { return };
    let own = match wanted(&asked) {
        Ok(Some(name)) => keep(name),
        Ok(None) => return,
        Err(complaint) => return log::warn!("{complaint}"),
    };
    let name = own.to_string_lossy();
    log::warn!(
        "FI_STRAIT_ALIAS={name}: the provider strait goes by the name {name} in this process. Unset the variable for programs that do not need it"
    );
    if let Some(filter) = std::env::var("FI_PROVIDER").ok().filter(|f| !passes(f, &name)) {
        log::warn!("FI_PROVIDER={filter} leaves out {name}: set FI_PROVIDER={name}, or unset it");
    }
    // SAFETY: the caller's promise: the core has not seen the structure yet.
    unsafe { (*provider).name = own.as_ptr() };
}

/// The other name that was set, if there is one; in `Err`, why it cannot be one.
fn wanted(asked: &str) -> Result<Option<CString>, String> {
    let name = asked.trim();
    if name == "strait" || name.is_empty() {
        return Ok(None);
    }
    settings::ALIAS.check(name).complaint.map_or(Ok(()), Err)?;
    Ok(CString::new(name).ok())
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
    fn blanks_are_no_part_of_a_name() {
        assert_eq!(wanted(" efa "), Ok(Some(c"efa".to_owned())));
        assert_eq!((wanted(" strait "), wanted("  ")), (Ok(None), Ok(None)));
        assert!(wanted("e fa").is_err() && wanted("ofi_rxm").is_err());
    }

    #[test]
    fn a_filter_without_the_name_is_found() {
        assert!(passes("efa", "efa") && passes("tcp,EFA", "efa") && passes("^tcp", "efa"));
        assert!(!passes("strait", "efa") && !passes("^efa", "efa"));
    }
}
