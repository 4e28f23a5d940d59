//! Distances and map types over recorded trees, and over any tree.

use p2pmem::topology::config::{Acs, Port};
use p2pmem::topology::{Cpu, Raw, Reason, Ties, config, recording};
use p2pmem::{Map, Topology};
use proptest::prelude::*;

const SWITCHES: &str = include_str!("trees/switches-intel.tree");
const ACS: &str = include_str!("trees/switches-acs.tree");
const SKYLAKE: &str = include_str!("trees/two-sockets-skylake.tree");
const HASWELL: &str = include_str!("trees/two-sockets-haswell.tree");
const AMD: &str = include_str!("trees/two-roots-amd.tree");

fn route(topology: &Topology, publisher: &str, client: &str) -> (u32, Map, Reason) {
    let index = |name| topology.resolve(name).unwrap();
    let route = topology.route(index(publisher), index(client));
    (route.distance, route.map, route.reason)
}

fn bridge(at: &str) -> Reason {
    Reason::Bridge(at.parse().unwrap())
}

#[test]
fn requests_turn_round_in_switches() {
    let all = Topology::parse(SWITCHES).unwrap();
    assert_eq!(route(&all, "nvme0", "nvme0"), (0, Map::BusAddress, Reason::Itself));
    assert_eq!(route(&all, "mlx5_0", "mlx5_1"), (2, Map::BusAddress, bridge("0000:02:01.0")));
    assert_eq!(route(&all, "nvme0", "mlx5_0"), (4, Map::BusAddress, bridge("0000:01:00.0")));
    assert_eq!(route(&all, "nvme0", "card0"), (6, Map::BusAddress, bridge("0000:01:00.0")));
    let reason = Reason::NotListed { domain: 0, bus: 0, vendor: 0x8086, device: 0x29c0 };
    assert_eq!(route(&all, "nvme0", "eth0"), (6, Map::NotSupported, reason));
    let path = all.route(all.resolve("nvme0").unwrap(), all.resolve("mlx5_0").unwrap()).path;
    let path: Vec<String> = path.iter().map(ToString::to_string).collect();
    assert_eq!(path, ["0000:03:00.0", "0000:02:00.0", "0000:01:00.0", "0000:02:01.0", "0000:04:00.0"]);
}

#[test]
fn acs_sends_requests_to_the_host_bridge() {
    let all = Topology::parse(ACS).unwrap();
    let (distance, map, reason) = route(&all, "nvme0", "mlx5_0");
    assert_eq!((distance, map), (4, Map::NotSupported));
    assert!(matches!(reason, Reason::NotListed { .. }), "{reason}");
    let route_to = |name| all.route(all.resolve("nvme0").unwrap(), all.resolve(name).unwrap());
    let text = route_to("mlx5_0").to_string();
    assert!(text.contains("pci=disable_acs_redir=0000:02:00.0;0000:02:01.0"), "{text}");
    // The functions of one adapter meet at a port that redirects.
    assert_eq!(route(&all, "mlx5_0", "mlx5_1").1, Map::NotSupported);
    // A device's own memory is not on the way.
    assert_eq!(route(&all, "nvme0", "nvme0").1, Map::BusAddress);
    // With a processor that passes all on, through the host bridge, as far as before.
    let zen = Topology::parse(&ACS.replace("cpu GenuineIntel 6", "cpu AuthenticAMD 23")).unwrap();
    assert_eq!(route(&zen, "nvme0", "mlx5_0"), (4, Map::HostBridge, Reason::Processor));
    let older = Topology::parse(&ACS.replace("cpu GenuineIntel 6", "cpu AuthenticAMD 21")).unwrap();
    assert_eq!(route(&older, "nvme0", "mlx5_0").1, Map::NotSupported);
}

#[test]
fn each_redirecting_bit_counts_and_no_other() {
    for bit in 0..16 {
        let acs = format!("acs={:x}", 1 << bit);
        let all = Topology::parse(&SWITCHES.replacen("acs=0\n", &format!("{acs}\n"), 2)).unwrap();
        let redirects = [2, 3, 5].contains(&bit);
        let map = if redirects { Map::NotSupported } else { Map::BusAddress };
        assert_eq!(route(&all, "nvme0", "mlx5_0").1, map, "bit {bit}");
    }
}

#[test]
fn listed_host_bridges_pass_on() {
    let all = Topology::parse(SKYLAKE).unwrap();
    assert_eq!(route(&all, "nvme0", "mlx5_0"), (4, Map::HostBridge, Reason::Listed));
    assert_eq!(route(&all, "nvme1", "mlx5_0"), (4, Map::HostBridge, Reason::Listed), "over two host bridges");
    let reason = Reason::Nameless { domain: 0, bus: 0xe0 };
    assert_eq!(route(&all, "nvme0", "eth9"), (4, Map::NotSupported, reason));

    let all = Topology::parse(HASWELL).unwrap();
    assert_eq!(route(&all, "nvme0", "mlx5_0"), (4, Map::HostBridge, Reason::Listed));
    let reason = Reason::OneHostBridge { vendor: 0x8086, device: 0x2f00 };
    assert_eq!(route(&all, "nvme0", "mlx5_1"), (4, Map::NotSupported, reason));

    let all = Topology::parse(AMD).unwrap();
    assert_eq!(route(&all, "nvme0", "mlx5_0"), (4, Map::HostBridge, Reason::Processor));
    assert_eq!(route(&all, "nvme0", "mlx5_2"), (4, Map::HostBridge, Reason::Processor), "a virtual function");
    // A virtual function is where its physical one is, wherever its own bus hangs.
    let virtual_bus =
        "pci0000:40/0000:42:00.0 id=15b3:101c class=020700 port=endpoint name=vf physfn=0000:41:00.0";
    let all = Topology::parse(&format!("{}{virtual_bus}\n", AMD.replace("acs=1d", "acs=0"))).unwrap();
    assert_eq!(route(&all, "vf", "mlx5_0"), (2, Map::BusAddress, bridge("0000:40:03.1")));
}

#[test]
fn the_closest_to_all_is_found_and_equals_take_turns() {
    let all = Topology::parse(SKYLAKE).unwrap();
    let index = |name: &str| all.resolve(name).unwrap();
    let (near, far) = (index("nvme0"), index("nvme1"));
    let mut count = [0; 2];
    let mut ties = Ties::new(Some(7));
    for _ in 0..1000 {
        let (best, distance) = all.closest(&[index("mlx5_0")], &mut ties).unwrap();
        assert_eq!(distance, 4);
        count[usize::from(best == far)] += 1;
    }
    assert!(count.iter().all(|n| (400..600).contains(n)), "{count:?}");
    // Of both the sum counts.
    assert_eq!(all.distance(near, &[index("mlx5_0"), near]), Ok(Some(4)));
    assert_eq!(all.closest(&[near, near, index("mlx5_0")], &mut ties), Some((near, 4)));
    assert_eq!(all.closest(&[index("eth9")], &mut ties), None, "which no publisher reaches");
    assert_eq!(all.closest(&[], &mut ties), None);
    assert_eq!(all.distance(near, &[near, index("eth9")]).unwrap_err().0, 1);
    // The seed decides.
    let picks = |seed| {
        (0..50).map(move |_| 10).scan(Ties::new(Some(seed)), |t, n| Some(t.pick(n))).collect::<Vec<_>>()
    };
    assert_eq!(picks(3), picks(3));
    assert_ne!(picks(3), picks(4));
}

#[test]
fn what_only_root_may_read_is_assumed_to_redirect_and_said() {
    let text = "cpu GenuineIntel 6\n\
        pci0000:00/0000:00:01.0 id=8086:1901 class=060400 size=4096 config@0=86800119\n\
        pci0000:00/0000:00:01.0/0000:01:00.0 id=1:2 class=020000 size=256 config@0=0100\n\
        pci0000:00/0000:00:01.0/0000:01:00.1 id=1:2 class=020000 size=256 config@0=0100\n";
    let all = Topology::parse(text).unwrap();
    assert_eq!((all.devices()[0].acs, all.devices()[0].port), (Acs::Unreadable, Port::Root));
    let route = all.route(1, 2);
    assert_eq!((route.map, route.assumed.len()), (Map::NotSupported, 1));
    assert!(route.to_string().contains("only root may read"), "{route}");
}

#[test]
fn sysfs_is_read_as_the_recording_it_was_laid_out_from() {
    for (n, text) in [SWITCHES, ACS, SKYLAKE, HASWELL, AMD].into_iter().enumerate() {
        let (cpu, raw) = recording::parse(text).unwrap();
        let dir = std::env::temp_dir().join(format!("strait-topology-{}-{n}", std::process::id()));
        recording::lay_out(&cpu, &raw, &dir).unwrap();
        let again = Topology::record(&dir).unwrap();
        let (of_text, of_dir) = (Topology::new(cpu, &raw).unwrap(), Topology::parse(&again).unwrap());
        let direct = Topology::read(&dir).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        for all in [&of_dir, &direct] {
            assert_eq!(all.cpu(), of_text.cpu());
            assert_eq!(all.devices().len(), of_text.devices().len());
            for (a, b) in all.devices().iter().zip(of_text.devices()) {
                assert_eq!((a.address, a.upstream, a.class), (b.address, b.upstream, b.class));
                assert_eq!((a.acs, a.port, a.p2pmem), (b.acs, b.port, b.p2pmem), "{}", a.address);
                assert_eq!((&a.names, a.numa, a.host), (&b.names, b.numa, b.host), "{}", a.address);
            }
        }
    }
}

#[test]
fn recordings_that_make_no_sense_are_refused_with_their_line() {
    for (text, part) in [
        ("cpu\n", "line 1"),
        ("\ncpu X y", "line 2"),
        ("pci0000:00/x", "line 1"),
        ("pci0000:00/0000:00:00.0 id=1", "id"),
        ("pci0000:00/0000:00:00.0 color=1:2", "color"),
        ("pci0000:00/0000:00:00.0 config@fff=0102", "config@fff"),
        ("pci0000:00/0000:00:00.0 config@0=0é", "config@0"),
        ("pci0000:00/../0000:00:00.0 id=1:2", ".."),
        ("pci0000:00/0000:00:00.0\npci0000:00/0000:00:00.0", "twice"),
        ("pci0000:00/0000:00:01.0/0000:01:00.0", "above"),
        ("0000:00:01.0", "above"),
    ] {
        let error = Topology::parse(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text:?}: {error}");
    }
    // A physical function that is below its virtual one.
    let circle =
        "pci0000:00/0000:00:01.0/0000:01:00.0 physfn=0000:00:01.0\npci0000:00/0000:01:00.0/0000:00:01.0";
    assert!(Topology::parse(circle).is_err());
}

/// A tree: of each further function its parent, what it is, and its ACS.
#[derive(Clone, Debug)]
struct Tree {
    cpu: Cpu,
    nodes: Vec<(usize, bool, Option<u16>, u16)>,
}

const ROOTS: usize = 2;

impl Tree {
    fn raw(&self) -> Vec<Raw> {
        let mut paths: Vec<String> = Vec::new();
        let mut all = Vec::new();
        for (n, (parent, bridge, acs, id)) in self.nodes.iter().enumerate() {
            // The first of these are root buses; below endpoints there is nothing.
            let mut up = parent % (n + ROOTS);
            while up >= ROOTS && !self.nodes[up - ROOTS].1 {
                up = self.nodes[up - ROOTS].0 % up;
            }
            let above = if up < ROOTS { format!("pci000{up}:00") } else { paths[up - ROOTS].clone() };
            let path = format!("{above}/000{}:{:02x}:00.0", n % 2, n + 1);
            paths.push(path.clone());
            let class = if *bridge { 0x06_0400 } else { 0x02_0000 };
            let port = match (bridge, up < ROOTS) {
                (true, true) => Port::Root,
                (true, false) => Port::Downstream,
                _ => Port::Endpoint,
            };
            let config = config::made(0x8086, *id, class, port, *acs);
            all.push(Raw {
                path,
                vendor: 0x8086,
                device: *id,
                class,
                config,
                config_size: 4096,
                ..Raw::default()
            });
        }
        all
    }
}

fn tree() -> impl Strategy<Value = Tree> {
    let node = (
        any::<usize>(),
        any::<bool>(),
        prop_oneof![Just(None), Just(Some(0)), Just(Some(0x1d)), any::<u16>().prop_map(Some)],
        prop_oneof![Just(0x2030), Just(0x2f00), Just(0x29c0)],
    );
    let cpu =
        prop_oneof![Just(("AuthenticAMD", 0x17)), Just(("GenuineIntel", 6)), Just(("AuthenticAMD", 0x15))];
    (cpu, prop::collection::vec(node, 1..24))
        .prop_map(|((vendor, family), nodes)| Tree { cpu: Cpu { vendor: vendor.into(), family }, nodes })
}

proptest! {
    #[test]
    fn routes_are_what_they_have_to_be(tree in tree(), change in any::<(usize, u16)>()) {
        let raw = tree.raw();
        let all = Topology::new(tree.cpu.clone(), &raw).unwrap();
        // The same tree with more bits of ACS somewhere.
        let mut more = tree.clone();
        let count = more.nodes.len();
        let acs = &mut more.nodes[change.0 % count].2;
        *acs = Some(acs.unwrap_or(0) | change.1);
        let stricter = Topology::new(tree.cpu.clone(), &more.raw()).unwrap();
        let n = all.devices().len();
        for a in 0..n {
            let depth = |of: usize| all.upward(of).count() as u32;
            for b in 0..n {
                let (there, back) = (all.route(a, b), all.route(b, a));
                prop_assert_eq!((there.distance, there.map), (back.distance, back.map));
                let mut path = back.path.clone();
                path.reverse();
                prop_assert_eq!(&there.path, &path);
                prop_assert_eq!(there.distance == 0, a == b);
                // Each step of the way is one of the tree.
                let meet = all.upward(a).find(|x| all.upward(b).any(|y| y == *x));
                match meet {
                    Some(at) => {
                        prop_assert_eq!(there.distance, depth(a) + depth(b) - 2 * depth(at));
                        prop_assert_eq!(there.path.len() as u32, there.distance + 1);
                    }
                    None => {
                        prop_assert_eq!(there.distance, depth(a) + depth(b));
                        prop_assert_ne!(there.map, Map::BusAddress);
                    }
                }
                // No redirection makes anything closer or turns a refusal into a route.
                let strict = stricter.route(a, b);
                prop_assert_eq!(strict.distance, there.distance);
                prop_assert!(strict.map >= there.map, "{:?} became {:?}", there.map, strict.map);
                // Through the host bridge and not at all are distinguished by the host bridges alone.
                if all.cpu().passes_on() {
                    prop_assert!(there.is_supported());
                }
                prop_assert_eq!(there.map == Map::BusAddress, meet.is_some() && there.redirects.is_empty());
            }
        }
    }

    #[test]
    fn the_closest_is_never_farther_than_another(tree in tree(), which in prop::collection::vec(any::<usize>(), 1..4), seed in any::<u64>()) {
        let mut raw = tree.raw();
        for one in raw.iter_mut().step_by(2) {
            one.p2pmem = Some(p2pmem::topology::P2pmem { size: 4096, available: 4096, published: true });
        }
        let all = Topology::new(tree.cpu.clone(), &raw).unwrap();
        let clients: Vec<usize> = which.iter().map(|n| n % all.devices().len()).collect();
        let found = all.closest(&clients, &mut Ties::new(Some(seed)));
        let each = (0..all.devices().len()).filter(|n| all.devices()[*n].p2pmem.is_some());
        let least = each.filter_map(|n| all.distance(n, &clients).ok()?).min();
        prop_assert_eq!(found.map(|(_, d)| d), least);
        if let Some((n, d)) = found {
            prop_assert_eq!(all.distance(n, &clients), Ok(Some(d)));
        }
    }
}
