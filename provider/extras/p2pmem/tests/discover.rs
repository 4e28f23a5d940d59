//! Publishers and clients that come and go while an orchestrator is in use, over a recording that is laid out
//! bit by bit.

#[path = "support/sysfs.rs"]
mod sysfs;

use std::sync::Arc;

use p2pmem::publisher::{Host, PAGE};
use p2pmem::topology::recording;
use p2pmem::{Drain, Orchestrator, Request, Rules};
use sysfs::{Sysfs, request, why};

const SWITCHES: &str = include_str!("trees/switches-intel.tree");

/// One function of a recording, with those that publish.
fn part(text: &str, which: impl Fn(&str) -> bool) -> (p2pmem::topology::Cpu, Vec<recording::Raw>) {
    let (cpu, raw) = recording::parse(text).unwrap();
    (cpu, raw.into_iter().filter(|r| which(r.path.rsplit('/').next().unwrap())).collect())
}

/// Publishers and clients that come are found, and what was taken out stays out.
#[test]
fn new_publishers_and_clients_are_found_and_removed_ones_stay_out() {
    let sysfs = Sysfs::new("cpu GenuineIntel 6\n");
    let lay = |which: &dyn Fn(&str) -> bool| {
        let (cpu, raw) = part(SWITCHES, which);
        recording::lay_out(&cpu, &raw, &sysfs.0).unwrap();
    };
    let late = ["0000:03:00.0", "0000:07:00.0", "0000:08:00.0"];
    lay(&|name| !late.contains(&name));
    let all = Orchestrator::of_host(&sysfs.0, Rules::default(), 0).unwrap();
    let names = |all: &Orchestrator| all.publishers().into_iter().map(|p| p.name).collect::<Vec<_>>();
    let before = names(&all);
    assert!(!before.contains(&late[0].to_owned()) && all.client("eth0").is_err());
    assert_eq!(all.rediscover().unwrap(), 0);
    // A client of before keeps its meaning: functions are numbered anew.
    let asked = request(&all, &["mlx5_0"], PAGE);
    lay(&|name| late.contains(&name));
    assert_eq!(all.rediscover().unwrap(), 1);
    assert_eq!(names(&all).len(), before.len() + 1);
    let buffer = all.allocate(&asked).unwrap();
    assert_eq!((buffer.publisher(), buffer.routes()[0].1.distance), (late[0], 4));
    assert!(all.client("eth0").is_ok());
    // A program takes it out: it stays so while the device is the same.
    assert_eq!(all.unpublish(late[0], Drain::Revoke).unwrap(), 1);
    drop(buffer);
    std::fs::remove_dir_all(sysfs.0.join("bus/pci/devices/0000:08:00.0").canonicalize().unwrap()).unwrap();
    std::fs::remove_file(sysfs.0.join("bus/pci/devices/0000:08:00.0")).unwrap();
    assert_eq!(all.rediscover().unwrap(), 0);
    assert_eq!(names(&all), before);
    // A client that has gone is no client.
    let gone = Request { clients: vec![asked.clients[0].clone()], ..asked };
    std::fs::remove_dir_all(
        sysfs.0.join("bus/pci/devices").join(gone.clients[0].name()).canonicalize().unwrap(),
    )
    .unwrap();
    std::fs::remove_file(sysfs.0.join("bus/pci/devices").join(gone.clients[0].name())).unwrap();
    assert_eq!(all.rediscover().unwrap(), 0);
    all.publish(Arc::new(Host::new(1 << 20))).unwrap();
    assert!(why(all.grant(&gone).unwrap_err()).contains("is there no more"));
    // The driver publishes anew: other memory, which was not taken out.
    let dir = sysfs.0.join("bus/pci/devices").join(late[0]).join("p2pmem").canonicalize().unwrap();
    std::fs::rename(&dir, dir.with_extension("old")).unwrap();
    assert_eq!(all.rediscover().unwrap(), 0);
    let (cpu, raw) = part(SWITCHES, |name| name == late[0]);
    std::fs::remove_file(sysfs.0.join("bus/pci/devices").join(late[0])).unwrap();
    recording::lay_out(&cpu, &raw, &sysfs.0).unwrap();
    assert_eq!(all.rediscover().unwrap(), 1);
    assert!(names(&all).contains(&late[0].to_owned()));
}
