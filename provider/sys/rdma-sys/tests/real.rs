//! The libibverbs that is installed: no device is needed.

use rdma_sys::{Device, Error, Library};

#[test]
fn the_installed_library_opens_and_lists_its_devices() {
    let library = match Library::open() {
        Ok(library) => library,
        Err(Error::NoLibrary(why)) => {
            eprintln!("skipped: {why}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    // A host without devices: an empty list. One with devices: each has a name.
    for device in Device::list(&library).unwrap() {
        assert!(!device.name().is_empty());
    }
    // Of rdma-core 44, the oldest that is served.
    for since_44 in ["ibv_reg_mr_iova2", "ibv_reg_dmabuf_mr", "ibv_is_fork_initialized", "_ibv_query_gid_ex"]
    {
        assert!(!library.functions().missing().contains(&since_44), "{since_44}");
    }
}

#[test]
fn a_library_that_is_not_there_is_an_error_that_says_what_to_install() {
    let error = Library::open_at("/nowhere/libibverbs.so.1".as_ref()).unwrap_err();
    assert!(matches!(error, Error::NoLibrary(_)), "{error:?}");
    assert!(error.to_string().contains("libibverbs1"), "{error}");
}
