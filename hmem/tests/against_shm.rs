//! What `valid` says, against libfabric's shm provider, where there is one.

use std::process::Command;

use hmem::{AtomicOp, Class, Datatype, valid};

#[test]
fn what_shm_offers_is_offered() {
    let out = concat!(env!("CARGO_TARGET_TMPDIR"), "/shm_valid");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/shm_valid.c");
    let built = Command::new("cc").args(["-o", out, source, "-lfabric"]).output();
    if !built.is_ok_and(|o| o.status.success()) {
        return eprintln!("skipped: no C compiler, or no libfabric");
    }
    let answer = Command::new(out).output().unwrap();
    if !answer.status.success() {
        return eprintln!("skipped: no shm provider");
    }
    let text = String::from_utf8(answer.stdout).unwrap();
    let mut sets = text.lines().map(|l| l.parse::<u16>().unwrap());
    // Beyond FI_FLOAT_COMPLEX it depends on the compiler libfabric was built by.
    let common = Datatype::DoubleComplex.code();
    for class in [Class::Base, Class::Fetch, Class::Compare] {
        for op in (0..19).filter_map(AtomicOp::from_code) {
            let theirs = sets.next().unwrap();
            let offered = |t: &u8| valid(op, Datatype::from_code(*t).unwrap(), class);
            let ours = (0..14).filter(offered).fold(0, |set, t| set | 1 << t);
            assert_eq!(theirs & !ours, 0, "{op:?} {class:?}");
            assert_eq!((theirs ^ ours) & ((1 << common) - 1), 0, "{op:?} {class:?}");
        }
    }
    assert_eq!(sets.next(), None);
}
