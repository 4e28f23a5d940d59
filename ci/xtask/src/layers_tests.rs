use super::*;

const DOC: &str = "text\n\n| crate | may use | knows |\n|---|---|---|\n| `hmem` | – | memory |\n\
    | `base/wire` | – | frames |\n| `link/links` (`strait-link`) | `base/wire`, `hmem` | `Linux` |\n\
    | `sys/libfabric-sys`, `sys/ucx-sys` | – | headers |\n\nmore";

fn member(dir: &str, uses: &[&str]) -> Manifest {
    let used = |name: &&str| {
        if name.contains('/') || *name == "hmem" {
            Used::Member((*name).to_owned())
        } else {
            Used::Other((*name).to_owned())
        }
    };
    Manifest {
        name: dir.to_owned(),
        dir: dir.to_owned(),
        roots: Vec::new(),
        uses: uses.iter().map(used).collect(),
    }
}

fn sound() -> Vec<Manifest> {
    vec![
        member("hmem", &["libc"]),
        member("provider/base/wire", &[]),
        member("provider/link/links", &["provider/base/wire", "hmem", "log"]),
        member("provider/sys/libfabric-sys", &[]),
        member("provider/sys/ucx-sys", &[]),
        member("tests/stand-in", &["libc"]),
        member("ci/xtask", &["syn"]),
    ]
}

/// The failures of a sound workspace, with a member that is exchanged or added.
fn failures(changed: Manifest) -> Vec<String> {
    let mut members = sound();
    members.retain(|m| m.dir != changed.dir);
    members.push(changed);
    uses(&rows(DOC), &members)
}

fn fails(changed: Manifest, complaint: &str) {
    let found = failures(changed);
    assert!(found.len() == 1 && found[0].contains(complaint), "{found:?}");
}

#[test]
fn a_workspace_that_keeps_to_the_table_is_sound() {
    assert_eq!(uses(&rows(DOC), &sound()), [""; 0]);
}

#[test]
fn uses_that_the_table_does_not_allow_are_found() {
    fails(member("hmem", &["provider/base/wire"]), "hmem/Cargo.toml:1: layers: uses provider/base/wire");
    fails(
        member("provider/link/links", &["provider/base/wire", "hmem", "provider/sys/ucx-sys"]),
        "uses provider/sys/ucx-sys",
    );
    fails(member("provider/base/wire", &["ci/xtask"]), "uses ci/xtask");
    fails(member("tests/stand-in", &["hmem"]), "uses hmem");
}

#[test]
fn crates_of_others_are_those_of_the_list_but_in_programs() {
    fails(member("provider/link/links", &["provider/base/wire", "hmem", "serde"]), "uses the crate serde");
    assert_eq!(failures(member("ci/xtask", &["syn", "toml"])), [""; 0]);
}

#[test]
fn the_table_and_the_workspace_have_the_same_crates_and_uses() {
    fails(member("provider/other", &[]), "provider/other has no row");
    fails(
        member("provider/link/links", &["provider/base/wire"]),
        "ARCHITECTURE.md:7: layers: provider/link/links does not use hmem",
    );
    let mut members = sound();
    members.retain(|m| m.dir != "provider/sys/ucx-sys");
    assert_eq!(
        uses(&rows(DOC), &members),
        ["ARCHITECTURE.md:8: layers: provider/sys/ucx-sys is no member: remove the row"]
    );
}

#[test]
fn safe_crates_forbid_unsafe_code() {
    let lacks = |text| {
        let mut found = Vec::new();
        forbids_unsafe(
            &Tree::of(&[("provider/base/wire/src/lib.rs", text)]),
            "provider/base/wire",
            &mut found,
        );
        found
    };
    assert_eq!(lacks("//! Frames.\n#![forbid(unsafe_code)]\n"), [""; 0]);
    assert!(lacks("// #![forbid(unsafe_code)]\n")[0].contains("does not forbid unsafe code"));
}

#[test]
fn names_of_libfabric_are_found_in_code_and_strings_but_not_in_comments() {
    let named = |text| {
        let mut found = Vec::new();
        names(&Tree::of(&[("provider/core/engine/src/a.rs", text)]), "provider/core/engine", &mut found);
        found
    };
    assert_eq!(
        named("// FI_MSG\nfn f() {} /* fi_rx_attr */\nconst SFI_X: u8 = 1; fn fi_attribute() {}"),
        [""; 0]
    );
    assert!(
        named("\nconst FI_MSG: u64 = 2; // own")[0].starts_with("provider/core/engine/src/a.rs:2: layers:")
    );
    assert_eq!(named("const W: &str = \"FI_WAIT_FD\";").len(), 1);
    assert_eq!(named("use libfabric_sys as s;\nfn f(_: s::fi_rx_attr) {}").len(), 2);
}

#[test]
fn indirect_dependencies_are_found() {
    let members = [
        member("provider/core/engine", &["provider/link/xfer"]),
        member("provider/link/xfer", &[LIBFABRIC]),
        member(LIBFABRIC, &[]),
    ];
    assert!(reaches(&members, "provider/core/engine", LIBFABRIC));
    assert!(!reaches(&members, LIBFABRIC, "provider/core/engine"));
}
