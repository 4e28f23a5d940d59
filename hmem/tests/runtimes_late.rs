//! A process that loads devices' runtimes, and does not initialise them.

use hmem::{Kind, classify, registry};
use rocr_stand_in::runtime::Runtime;
use ze_stand_in::loader::Loader;

#[test]
fn a_runtime_is_used_once_the_application_has_started_it() {
    let heap = vec![0u8; 1 << 20];
    let at = heap.as_ptr().addr();
    assert_eq!(classify(at, 8), Kind::System);
    assert!(!registry::any_device(), "nothing has loaded one");
    for kind in [Kind::Rocr, Kind::Ze] {
        assert!(registry::of(kind).describe().unwrap_err().contains("in this process"));
    }
    let (rocr, ze) = (Runtime::load(), Loader::load());
    assert!(registry::is_here(Kind::Rocr) && registry::is_here(Kind::Ze));
    assert_eq!(classify(at, 8), Kind::System);
    assert_eq!((rocr.calls(c"hsa_init"), ze.calls(c"zeInit")), (0, 0), "they are not started by us");
    assert_eq!(ze.calls(c"zeContextCreate"), 0);
    let (rocr, ze) = (Runtime::start(), Loader::start());
    assert_eq!(classify(rocr.alloc(0, 8), 8), Kind::Rocr);
    assert_eq!(classify(ze.alloc(0, 8), 8), Kind::Ze);
    assert_eq!((rocr.calls(c"hsa_init"), ze.calls(c"zeInit")), (1, 1));
}
