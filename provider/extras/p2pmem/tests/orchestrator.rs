//! Publishers, rules and buffers together, in one process.

#[path = "support/sysfs.rs"]
mod sysfs;

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use p2pmem::publisher::{Host, Kind, PAGE, Publisher, Region, windows};
use p2pmem::{Buffer, Drain, Error, Map, Orchestrator, Request, Rules, Topology};
use proptest::prelude::*;
use sysfs::{Sysfs, request, why};

const SWITCHES: &str = include_str!("trees/switches-intel.tree");
const SKYLAKE: &str = include_str!("trees/two-sockets-skylake.tree");

fn host(rules: &str, size: u64) -> Orchestrator {
    let all = Orchestrator::new(Topology::parse(SWITCHES).unwrap(), Rules::parse(rules).unwrap(), Some(1));
    all.publish(Arc::new(Host::new(size))).unwrap();
    all
}

fn of_file(name: &str, function: &str, pages: u64) -> Arc<dyn Publisher> {
    let fd = ipc::memfd::create(c"region", (pages * PAGE) as usize, ipc::memfd::Writers::All).unwrap();
    Arc::new(Region::of_file(name, Some(function.parse().unwrap()), fd, 0, pages * PAGE))
}

/// Writes to all of it and reads it back.
fn fill(buffer: &Buffer, with: u8) {
    for piece in buffer.map().unwrap() {
        let at = std::ptr::with_exposed_provenance_mut::<u8>(piece.addr());
        // SAFETY: the piece is mapped for as long as the buffer is there, and nothing else uses it.
        unsafe {
            at.write_bytes(with, piece.len());
            assert_eq!(at.add(piece.len() - 1).read(), with);
        }
    }
}

#[test]
fn memory_comes_from_the_closest_window_and_then_from_the_host() {
    let sysfs = Sysfs::new(SWITCHES);
    let all = Orchestrator::of_host(&sysfs.0, Rules::default(), 1 << 30).unwrap();
    let near = all.allocate(&request(&all, &["mlx5_0", "card0"], 3 * PAGE + 1)).unwrap();
    assert_eq!((near.publisher(), near.kind(), near.len()), ("0000:03:00.0", Kind::Sysfs, 4 * PAGE));
    assert_eq!(
        near.routes().iter().map(|(_, r)| (r.map, r.distance)).collect::<Vec<_>>(),
        [(Map::BusAddress, 4), (Map::BusAddress, 6)]
    );
    fill(&near, 0x5a);
    assert!(near.map().unwrap()[0].may_vanish());
    assert!(p2pmem::peer::is_window(near.map().unwrap()[0].addr(), 4 * PAGE as usize));
    assert!(near.dmabuf(0).unwrap_err().to_string().contains("no dma-buf"));
    // The adapter on the other root port does not reach the window.
    let far = all.allocate(&request(&all, &["mlx5_0", "eth0"], 1)).unwrap();
    assert_eq!((far.publisher(), far.routes()[0].1.map), ("host", Map::HostMemory));
    fill(&far, 1);
    let own = Request { host: false, ..request(&all, &["eth0"], 1) };
    let text = why(all.allocate(&own).unwrap_err());
    assert!(text.contains("0000:08:00.0 cannot reach it") && text.contains("8086:29c0"), "{text}");
    assert!(text.contains("wants no host memory"), "{text}");
    let free = |n: usize| all.publishers()[n].available;
    assert_eq!((free(0), free(1)), (67_108_864 - 4 * PAGE, (1 << 30) - PAGE));
    let at = near.map().unwrap()[0].addr();
    drop((near, far));
    assert_eq!((free(0), free(1)), (67_108_864, 1 << 30));
    assert!(!p2pmem::peer::is_window(at, 1));
    assert_eq!(all.used(1000), (0, 0));
    assert!(matches!(all.client("mlx5_7").unwrap_err(), Error::NoDevice(_)));
}

#[test]
fn equals_take_turns() {
    let sysfs = Sysfs::new(SKYLAKE);
    let topology = Topology::read(&sysfs.0).unwrap();
    let all = Orchestrator::new(topology.clone(), Rules::default(), Some(5));
    for window in windows(&sysfs.0, &topology) {
        all.publish(Arc::new(window)).unwrap();
    }
    assert_eq!(all.publishers().len(), 2, "what is not published is none");
    let request = request(&all, &["mlx5_0"], PAGE);
    let mut first = 0;
    for _ in 0..400 {
        let (best, _) = all.candidates(&request);
        assert_eq!(best.iter().map(|(_, d)| *d).collect::<Vec<_>>(), [Some(4), Some(4)]);
        first += usize::from(best[0].0 == "0000:3b:00.0");
    }
    assert!((140..260).contains(&first), "{first}");
    // When one is used up the other one gives.
    let held: Vec<Buffer> = (0..512).map(|_| all.grant(&request).unwrap()).collect();
    assert!(why(all.grant(&request).unwrap_err()).contains("0 of 1048576 bytes are free"));
    drop(held);
}

#[test]
fn rules_are_kept() {
    let all = host("", 1 << 20);
    all.publish(of_file("gpu0", "0000:07:00.0", 16)).unwrap();
    all.publish(of_file("cmb0", "0000:03:00.0", 16)).unwrap();
    let from = |rules: &str, change: &dyn Fn(&mut Request)| {
        all.set_rules(Rules::parse(rules).unwrap());
        let mut request = request(&all, &["mlx5_0"], PAGE);
        change(&mut request);
        all.grant(&request).map(|b| b.publisher().to_owned())
    };
    let same = &|_: &mut Request| {};
    assert_eq!(from("", same).unwrap(), "cmb0", "the closest");
    assert_eq!(from("deny publisher=cmb*", same).unwrap(), "gpu0");
    assert_eq!(from("deny publisher=cmb* client=eth?", same).unwrap(), "cmb0");
    assert_eq!(from("deny publisher=cmb* client=mlx5_?", same).unwrap(), "gpu0", "by a name");
    assert_eq!(from("deny publisher=cmb* uid=7", same).unwrap(), "cmb0");
    assert_eq!(from("prefer publisher=gpu0", same).unwrap(), "gpu0");
    assert_eq!(from("prefer publisher=kind:host\nprefer publisher=gpu0", same).unwrap(), "host");
    assert_eq!(from("pin publisher=gpu0 job=train*", same).unwrap(), "cmb0");
    assert_eq!(from("pin publisher=gpu0 job=train*", &|r| r.job = "train1".into()).unwrap(), "gpu0");
    assert_eq!(from("max-distance 3", same).unwrap(), "host");
    assert_eq!(from("deny publisher=cmb0\nmax-distance 5", same).unwrap(), "host");
    let error = why(from("max-distance 3\nrequire map=peer", same).unwrap_err());
    assert!(error.contains("\"max-distance 3\" (line 1)"), "{error}");
    assert!(error.contains("\"require map=peer\" (line 2): it is host memory"), "{error}");
    let eth = &|r: &mut Request| r.clients = vec![all.client("eth0").unwrap()];
    assert_eq!(from("require map=bus-address client=mlx5_0", eth).unwrap(), "host");
    let error = why(from("pin publisher=gpu0\ndeny publisher=gpu0", same).unwrap_err());
    assert!(error.contains("pins it elsewhere") && error.contains("denies it"), "{error}");
}

#[test]
fn quotas_are_of_a_user_and_of_publishers() {
    let all = host("quota 8KiB uid=1000 publisher=kind:host\nquota 64K", 1 << 20);
    let ask = |uid, pages| all.grant(&Request { len: pages * PAGE, uid, ..Request::default() });
    let first = ask(1000, 1).unwrap();
    let second = ask(1000, 1).unwrap();
    let error = why(ask(1000, 1).unwrap_err());
    assert!(error.contains("uid 1000 has 8192 of 8192 bytes and asks for 4096"), "{error}");
    assert!(ask(1001, 2).is_ok(), "each user has its own");
    let _other = ask(1001, 16).unwrap();
    assert!(ask(1001, 1).is_err());
    drop(first);
    let third = ask(1000, 1).unwrap();
    assert_eq!(all.used(1000), (2, 2 * PAGE));
    // A handle more is not a buffer more.
    let again = third.share(&[]).unwrap();
    drop(third);
    assert_eq!(all.used(1000), (2, 2 * PAGE));
    drop((again, second));
    assert_eq!(all.used(1000), (0, 0));
}

#[test]
fn a_buffer_is_shared_with_clients_that_reach_it() {
    let all = host("deny client=card0 uid=1000", 1 << 20);
    all.publish(of_file("cmb0", "0000:03:00.0", 16)).unwrap();
    let buffer = all.allocate(&request(&all, &["mlx5_0"], PAGE)).unwrap();
    let both = buffer.share(&[all.client("mlx5_1").unwrap(), all.client("nvme0").unwrap()]).unwrap();
    assert_eq!(both.routes().iter().map(|(_, r)| r.distance).collect::<Vec<_>>(), [4, 0]);
    assert_eq!(both.map().unwrap()[0].addr(), buffer.map().unwrap()[0].addr());
    let error = buffer.share(&[all.client("eth0").unwrap()]).unwrap_err();
    assert!(why(error).contains("0000:08:00.0 cannot reach it"));
    assert!(why(buffer.share(&[all.client("card0").unwrap()]).unwrap_err()).contains("denies it"));
    drop(buffer);
    fill(&both, 3);
    assert_eq!(all.publishers()[1].buffers, 1);
    let (fd, offset) = both.dmabuf(0).unwrap();
    assert_eq!((fd.as_fd().try_clone_to_owned().is_ok(), offset), (true, 0));
    drop(both);
    assert_eq!(all.publishers()[1].available, 16 * PAGE);
}

#[test]
fn pieces_are_gathered_where_there_is_no_room_in_one() {
    let all = host("deny publisher=host", 1 << 20);
    all.publish(of_file("cmb0", "0000:03:00.0", 8)).unwrap();
    let one = || all.grant(&request(&all, &[], PAGE)).unwrap();
    let mut held: Vec<Buffer> = (0..8).map(|_| one()).collect();
    let error = why(all.grant(&request(&all, &[], PAGE)).unwrap_err());
    assert!(error.contains("0 bytes are free"), "{error}");
    // Every other page is free.
    for n in [6, 4, 2, 0] {
        held.remove(n);
    }
    let three = |segments| all.allocate(&Request { segments, ..request(&all, &[], 3 * PAGE) });
    let error = why(three(1).unwrap_err());
    assert!(error.contains("16384 bytes are free, 4096 of them in one piece"), "{error}");
    let error = why(three(2).unwrap_err());
    assert!(error.contains("8192 of 12288 bytes are to be had in 2 pieces"), "{error}");
    assert_eq!(all.publishers()[1].available, 4 * PAGE, "a failure keeps nothing");
    let buffer = three(3).unwrap();
    assert_eq!((buffer.leases().len(), buffer.len()), (3, 3 * PAGE));
    fill(&buffer, 9);
    drop((buffer, held));
    assert_eq!(all.publishers()[1].available, 8 * PAGE);
    let aligned = all.grant(&Request { align: 4 * PAGE, ..request(&all, &[], PAGE) });
    assert!(aligned.is_ok());
    for (len, align, segments) in [(0, 1, 1), (u64::MAX, 1, 1), (1, 3 * PAGE, 1), (1, 1, 0)] {
        let bad = all.grant(&Request { align, segments, ..request(&all, &[], len) });
        assert!(matches!(bad.unwrap_err(), Error::Invalid(_)), "{len} {align} {segments}");
    }
}

#[test]
fn a_publisher_is_drained_or_its_buffers_are_revoked() {
    let all = host("", 1 << 20);
    let buffer = all.allocate(&request(&all, &[], PAGE)).unwrap();
    let busy = all.unpublish("host", Drain::IfIdle).unwrap_err();
    assert!(matches!(busy, Error::Busy { buffers: 1, bytes: PAGE, .. }), "{busy}");
    drop(all.grant(&request(&all, &[], PAGE)).expect("it goes on"));
    assert!(all.unpublish("host", Drain::Wait(Duration::from_millis(1))).is_err());
    assert!(why(all.grant(&request(&all, &[], PAGE)).unwrap_err()).contains("being unpublished"));
    // It goes when the last one does.
    let other = all.clone();
    let waits = std::thread::spawn(move || other.unpublish("host", Drain::Wait(Duration::from_secs(60))));
    drop(buffer);
    assert_eq!(waits.join().unwrap().unwrap(), 0);
    assert!(all.publishers().is_empty());
    assert_eq!(all.unpublish("host", Drain::IfIdle).unwrap_err().errno(), libc::ENOENT);

    all.publish(Arc::new(Host::new(1 << 20))).unwrap();
    assert!(all.publish(Arc::new(Host::new(1))).unwrap_err().to_string().contains("already"));
    let buffer = all.allocate(&request(&all, &[], PAGE)).unwrap();
    let notices = Arc::new(Mutex::new(Vec::new()));
    let list = notices.clone();
    buffer.on_revoke(move |why| list.lock().unwrap().push(why.to_owned()));
    assert_eq!(all.unpublish("host", Drain::Revoke).unwrap(), 1);
    let list = notices.clone();
    buffer.on_revoke(move |why| list.lock().unwrap().push(why.to_owned()));
    assert_eq!(*notices.lock().unwrap(), ["host was unpublished"; 2], "also to what comes late");
    assert!(buffer.is_revoked() && matches!(buffer.map(), Err(Error::Revoked(_))));
    assert!(matches!(buffer.share(&[]), Err(Error::Revoked(_))));
}

#[test]
fn a_device_that_goes_takes_its_buffers_along() {
    let sysfs = Sysfs::new(SWITCHES);
    let all = Orchestrator::of_host(&sysfs.0, Rules::default(), 0).unwrap();
    let buffer = all.allocate(&request(&all, &["mlx5_0"], PAGE)).unwrap();
    assert_eq!(all.check(), 0);
    let link = sysfs.0.join("bus/pci/devices/0000:03:00.0/p2pmem");
    std::fs::remove_dir_all(link.canonicalize().unwrap()).unwrap();
    let asked = request(&all, &["mlx5_0"], PAGE);
    assert_eq!((all.check(), all.check()), (1, 0));
    assert!(why(all.grant(&asked).unwrap_err()).contains("nothing publishes"));
    assert!(buffer.is_revoked());
    assert!(all.publishers().is_empty());
}

/// The driver is taken from the device and given back: the memory is other memory, which a buffer finds out
/// by itself.
#[test]
fn a_device_that_comes_back_is_another_publisher() {
    let sysfs = Sysfs::new(SWITCHES);
    let all = Orchestrator::of_host(&sysfs.0, Rules::default(), 0).unwrap();
    let buffer = all.allocate(&request(&all, &["mlx5_0"], PAGE)).unwrap();
    assert!(!buffer.is_revoked());
    let dir = sysfs.0.join("bus/pci/devices/0000:03:00.0/p2pmem").canonicalize().unwrap();
    // The old one stays for a while, so that the new one has an inode of its own.
    std::fs::rename(&dir, dir.with_extension("old")).unwrap();
    std::fs::create_dir(&dir).unwrap();
    for entry in std::fs::read_dir(dir.with_extension("old")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
    }
    assert!(buffer.is_revoked() && all.publishers().is_empty());
    drop(buffer);
    // A request that finds nothing looks for what has come.
    fill(&all.allocate(&request(&all, &["mlx5_0"], PAGE)).unwrap(), 3);
    assert_eq!(all.rediscover().unwrap(), 0);
}

#[test]
fn memory_that_a_program_gives_is_divided() {
    let all = host("deny publisher=host", 1 << 20);
    let mut memory = vec![0u8; 8 * PAGE as usize];
    let at = memory.as_mut_ptr().expose_provenance().next_multiple_of(PAGE as usize);
    let function = Some("0000:07:00.0".parse().unwrap());
    // SAFETY: the vector outlives the orchestrator's buffers.
    let region = unsafe { Region::of_memory("gpu0", function, at, 4 * PAGE as usize) };
    assert_eq!(region.kind().name(), "memory");
    all.publish(Arc::new(region)).unwrap();
    let buffers: Vec<Buffer> =
        (0..4).map(|_| all.allocate(&request(&all, &["mlx5_0"], PAGE)).unwrap()).collect();
    assert!(buffers.iter().all(|b| (at..at + 4 * PAGE as usize).contains(&b.map().unwrap()[0].addr())));
    buffers.iter().for_each(|b| fill(b, 8));
    assert!(all.grant(&request(&all, &["mlx5_0"], PAGE)).is_err());
    // Of a publisher whose function is not known nothing is said.
    // SAFETY: as above.
    let lost = unsafe { Region::of_memory("lost", None, at + 4 * PAGE as usize, 2 * PAGE as usize) };
    all.publish(Arc::new(lost)).unwrap();
    let error = why(all.grant(&request(&all, &["mlx5_0"], PAGE)).unwrap_err());
    assert!(error.contains("not known which PCI function"), "{error}");
    assert_eq!(all.grant(&request(&all, &[], PAGE)).unwrap().publisher(), "lost", "for the CPU it will do");
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { pages: u64, segments: usize, uid: u32 },
    Share(usize),
    Free(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1u64..12, 1usize..5, 0u32..3).prop_map(|(pages, segments, uid)| Step::Allocate {
            pages,
            segments,
            uid
        }),
        any::<usize>().prop_map(Step::Share),
        any::<usize>().prop_map(Step::Free),
    ]
}

proptest! {
    /// Whatever is allocated, shared and freed: no two buffers overlap, the figures add up, quotas hold, all
    /// comes back.
    #[test]
    fn the_books_are_right(steps in prop::collection::vec(step(), 0..120)) {
        let all = host("quota 20K uid=0\ndeny publisher=host uid=1", 40 * PAGE);
        all.publish(of_file("cmb0", "0000:03:00.0", 24)).unwrap();
        let mut live: Vec<(Buffer, u32)> = Vec::new();
        for step in steps {
            match step {
                Step::Allocate { pages, segments, uid } => {
                    let asked = Request { segments, uid, ..request(&all, &[], pages * PAGE) };
                    match all.grant(&asked) {
                        Ok(buffer) => {
                            prop_assert!(buffer.leases().len() <= segments && buffer.len() == pages * PAGE);
                            prop_assert!(uid != 1 || buffer.publisher() == "cmb0");
                            live.push((buffer, uid));
                        }
                        Err(error) => {
                            let free = |n: usize| all.publishers()[n].available;
                            let barred = uid == 1 || (uid == 0 && all.used(0).1 + pages * PAGE > 20 << 10);
                            prop_assert!(barred || free(0) < pages * PAGE, "{error}");
                        }
                    }
                }
                Step::Share(n) if !live.is_empty() => {
                    let (buffer, uid) = &live[n % live.len()];
                    let more = (buffer.share(&[]).unwrap(), *uid);
                    live.push(more);
                }
                Step::Free(n) if !live.is_empty() => drop(live.swap_remove(n % live.len())),
                _ => {}
            }
            let mut buffers: Vec<&(Buffer, u32)> = live.iter().collect();
            buffers.sort_by_key(|(b, _)| b.id());
            buffers.dedup_by_key(|(b, _)| b.id());
            for uid in 0..3 {
                let of = buffers.iter().filter(|(_, u)| *u == uid);
                let sum = of.fold((0, 0), |(n, bytes), (b, _)| (n + 1, bytes + b.len()));
                prop_assert_eq!(all.used(uid), sum);
            }
            prop_assert!(all.used(0).1 <= 20 << 10);
            let used: u64 = buffers.iter().map(|(b, _)| b.len()).sum();
            let free: u64 = all.publishers().iter().map(|p| p.available).sum();
            prop_assert_eq!(used + free, 64 * PAGE);
            let mut parts: Vec<(u64, u64)> = Vec::new();
            for (buffer, _) in buffers.iter().filter(|(b, _)| b.publisher() == "cmb0") {
                for lease in buffer.leases() {
                    if let p2pmem::publisher::Source::File { offset, .. } = lease.source() {
                        parts.push((*offset, lease.len()));
                    }
                }
            }
            parts.sort_unstable();
            prop_assert!(parts.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0), "{parts:?}");
        }
        drop(live);
        prop_assert!(all.publishers().iter().all(|p| p.available == p.size && p.buffers == 0));
    }
}

/// Windows are a kind of memory of `hmem`'s: found, copied with a guard, refused once they are gone.
#[test]
fn doors_take_windows_and_survive_their_device() {
    use hmem::Kind as Memory;
    let sysfs = Sysfs::new(SWITCHES);
    let all = Orchestrator::of_host(&sysfs.0, Rules::default(), 0).unwrap();
    p2pmem::peer::register().unwrap();
    p2pmem::peer::register().unwrap();
    let len = 4 * PAGE as usize;
    let buffer = all.allocate(&request(&all, &["mlx5_0"], len as u64)).unwrap();
    let at = buffer.map().unwrap()[0].addr();
    assert_eq!(hmem::classify(at, len), Memory::Client);
    assert_eq!(hmem::classify(at + len - 1, 1), Memory::Client);
    assert_eq!(hmem::classify(at + len - 1, 2), Memory::System, "not all of it is a window");
    let span = |kind| {
        // SAFETY: it is mapped until the buffer goes, which is at the end.
        unsafe { hmem::Span::new(at, len, kind) }
    };
    let (window, mut back) = (span(Memory::Client), vec![0; len]);
    let pages = hmem::registry::get_pages(window, true).unwrap();
    let bytes: Vec<u8> = (0..len).map(|n| (n * 7) as u8).collect();
    assert_eq!(hmem::write(&[window], 0, &bytes), len);
    assert_eq!(hmem::read(&[window], 0, &mut back), len);
    assert_eq!(back, bytes);
    let memory = hmem::registry::of(Memory::Client);
    assert!(memory.export_dmabuf(at, len, true).is_err());
    // The device goes: its pages do, and an access is SIGBUS.
    let file = sysfs.0.join("bus/pci/devices/0000:03:00.0/p2pmem/allocate");
    std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(0).unwrap();
    let own = back.as_ptr().expose_provenance();
    let error = memory.copy_now(own, at, len).unwrap_err();
    assert_eq!(error.errno(), libc::EIO);
    assert!(memory.copy_now(at, own, len).is_err());
    // Unmapped, the registration is invalid, and the address is a window's until it is closed.
    drop(buffer);
    assert_eq!(memory.copy_now(own, at, 1).unwrap_err().errno(), libc::ESTALE);
    drop(pages);
    assert_eq!(hmem::classify(at, 1), Memory::System);
}

/// Memory of a kind that the CPU cannot access is divided like any other.
#[test]
fn device_memory_is_published() {
    let all = host("deny publisher=host", 1 << 20);
    let device = hmem::fake::alloc(4 * PAGE as usize);
    let function = Some("0000:07:00.0".parse().unwrap());
    // SAFETY: it is freed when all else is gone.
    let region = unsafe { Region::of_memory("gpu0", function, device.addr(), device.len()) };
    assert_eq!(region.kind().name(), "fake");
    all.publish(Arc::new(region)).unwrap();
    let buffer = all.allocate(&request(&all, &["mlx5_0", "nvme0"], PAGE)).unwrap();
    assert_eq!(buffer.routes().iter().map(|(_, r)| r.distance).collect::<Vec<_>>(), [6, 6]);
    let at = buffer.map().unwrap()[0].addr();
    assert_eq!(hmem::classify(at, PAGE as usize), hmem::Kind::Fake);
    assert!(!buffer.map().unwrap()[0].is_own());
}

#[path = "../examples/nearest.rs"]
mod nearest;

#[test]
fn the_example_gets_memory_from_the_closest_publisher() {
    let sysfs = Sysfs::new(SWITCHES);
    let run = |devices: &[&str]| {
        let devices: Vec<String> = devices.iter().map(|d| (*d).to_owned()).collect();
        nearest::run(&sysfs.0, 5000, &devices)
    };
    let near = run(&["mlx5_0"]).unwrap();
    assert_eq!(near, "8192 bytes of 0000:03:00.0; 0000:04:00.0: distance 4, turns round at 0000:01:00.0");
    assert_eq!(run(&["eth0"]).unwrap(), "8192 bytes of host; 0000:08:00.0: distance 0, host memory");
    assert!(run(&["mlx5_9"]).unwrap_err().to_string().contains("strait topo"));
}
