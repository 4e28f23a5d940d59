//! Devices looked up by their UUIDs, over the stand-in for CUDA's driver, in a process of which none is in
//! use.

use cuda_stand_in::driver::Driver;
use hmem::share::{Export, HandleType};
use hmem::{Kind, cuda, registry};

#[test]
fn a_device_that_is_not_found_is_reported_with_the_reason() {
    let cu = Driver::load();
    assert_eq!(cu.status(c"cuInit", 0), 0);
    cuda::find_driver();
    let of = |number: u8| {
        let mut device = *b"stand-in device ";
        device[15] = number;
        let token = [0; 64];
        let export =
            Export { handle_type: HandleType::Legacy, id: 1, base: 0, len: 1, fd: -1, device, token };
        registry::of(Kind::Cuda).context(&export, 0).map_err(|e| e.code)
    };
    assert_eq!(of(1), Err(201), "it has no context");
    assert_eq!(of(7), Err(100), "there is none");
    cu.fail(c"cuDeviceGetUuid_v2", 1, 999);
    assert_eq!(of(1), Err(201), "another one gives no UUID");
    cu.fail(c"cuDeviceGetUuid_v2", 2, 999);
    assert_eq!(of(1), Err(999), "it gives none");
    cu.fail(c"cuDeviceGetCount", 0, 3);
    assert_eq!(of(1), Err(3));
    cu.fail(c"cuDeviceGetCount", 0, 0);
    cu.enter(1);
    let ctx = of(1).unwrap();
    cu.fail(c"cuDeviceGetUuid_v2", 1, 999);
    assert_eq!(of(1), Ok(ctx));
    cu.leave();
    assert_eq!((of(1), of(7)), (Ok(ctx), Ok(ctx)), "any will do");
}
