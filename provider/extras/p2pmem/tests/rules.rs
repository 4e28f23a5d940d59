//! Rules as they are written.

use p2pmem::{Rules, Topology};

#[test]
fn mistakes_in_rules_are_reported_with_their_line() {
    for (text, line, part) in [
        ("\nforbid client=x", 2, "the rules are deny, prefer"),
        ("# fine\ndeny", 2, "deny publisher=*"),
        ("deny client", 1, "key=value"),
        ("deny clint=x", 1, "the keys are publisher"),
        ("deny client=", 1, "wants a value"),
        ("deny client=a client=b", 1, "twice"),
        ("deny uid=root", 1, "id -u NAME"),
        ("deny publisher=kind:fpga", 1, "the kinds are sysfs"),
        ("deny map=peer publisher=x", 1, "goes with require"),
        ("prefer client=x", 1, "wants publisher="),
        ("require", 1, "map=bus-address"),
        ("require map=fast", 1, "map=bus-address"),
        ("max-distance", 1, "strait topo"),
        ("max-distance near", 1, "no number of steps"),
        ("quota uid=1", 1, "64MiB"),
        ("quota 12XB", 1, "KiB"),
        ("quota 1KiB job=x", 1, "a quota is of a user"),
        ("quota 99999999999T", 1, "KiB"),
    ] {
        let error = Rules::parse(text).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL);
        let error = error.to_string();
        assert!(error.contains(&format!("line {line}: ")) && error.contains(part), "{text:?}: {error}");
    }
    assert!(Rules::default().add("deny publisher=*\nprefer publisher=x").is_err());
    assert!(Rules::default().add("deny publisher=*").is_ok());
    let sizes =
        [("0", 0), ("4096", 4096), ("2KiB", 2048), ("3M", 3 << 20), ("1GiB", 1 << 30), ("1T", 1 << 40)];
    assert!(sizes.iter().all(|(text, n)| p2pmem::rules::size(text) == Ok(*n)));
    assert!(p2pmem::rules::size("5iB").is_err() && p2pmem::rules::size("").is_err());
}

#[test]
fn any_text_is_rules_or_an_error() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let _ = Rules::parse(&String::from_utf8_lossy(bytes));
        let _ = Topology::parse(&String::from_utf8_lossy(bytes));
    });
}
