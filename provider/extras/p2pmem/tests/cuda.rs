//! CUDA's memory as a publisher's, over the stand-in for its driver.

use std::sync::Arc;

use cuda_stand_in::driver::Driver;
use p2pmem::publisher::{PAGE, Region};
use p2pmem::{Map, Orchestrator, Request, Rules, Topology};

#[test]
fn memory_of_a_gpu_is_given_to_clients_that_reach_it() {
    let cu = Driver::start();
    let all = Orchestrator::new(
        Topology::parse(include_str!("trees/switches-intel.tree")).unwrap(),
        Rules::parse("require map=bus-address\nprefer publisher=kind:cuda").unwrap(),
        Some(1),
    );
    let len = 8 * PAGE as usize;
    let at = cu.alloc(len);
    // SAFETY: it is freed when all else is gone.
    let gpu = unsafe { Region::of_memory("gpu0", Some("0000:07:00.0".parse().unwrap()), at, len) };
    all.publish(Arc::new(gpu)).unwrap();
    assert_eq!(all.publishers()[0].kind, "cuda");
    let request =
        |name: &str| Request { clients: vec![all.client(name).unwrap()], len: PAGE, ..Request::default() };
    let buffer = all.allocate(&request("mlx5_0")).unwrap();
    assert_eq!((buffer.routes()[0].1.map, buffer.routes()[0].1.distance), (Map::BusAddress, 6));
    let piece = buffer.map().unwrap()[0].addr();
    assert!((at..at + len).contains(&piece));
    assert_eq!(hmem::classify(piece, PAGE as usize), hmem::Kind::Cuda);
    // The driver is asked for a dma-buf, which the stand-in does not make.
    let error = buffer.dmabuf(0).unwrap_err();
    assert!(
        error.to_string().contains("gpu0: dma-buf: ") && error.to_string().contains("exports none"),
        "{error}"
    );
    assert_eq!(error.errno(), libc::EOPNOTSUPP);
    for (code, errno, words) in
        [(1, libc::EINVAL, "whole pages"), (201, libc::ENXIO, "gone"), (999, libc::EIO, "999")]
    {
        cu.fail(c"cuMemGetHandleForAddressRange", 0, 0);
        cu.fail(c"cuMemGetHandleForAddressRange", 0, code);
        let error = buffer.dmabuf(0).unwrap_err();
        assert!(error.errno() == errno && error.to_string().contains(words), "{error}");
    }
    cu.fail(c"cuMemGetHandleForAddressRange", 0, 0);
    let error = all.allocate(&request("eth0")).unwrap_err().to_string();
    assert!(error.contains("0000:08:00.0 cannot reach it"), "{error}");
    drop(buffer);
    assert_eq!(all.publishers()[0].available, len as u64);
    cu.free(at);
}
