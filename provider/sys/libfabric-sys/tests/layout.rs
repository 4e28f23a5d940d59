//! Compares the bindings with what the C compiler makes of the headers that are installed.
//!
//! Older headers lack fields and constants, never move or change them: all that they do have must
//! be where the bindings say. `LIBFABRIC_INCLUDE` names a directory with other headers than the
//! system's. Without a compiler or headers there is nothing to compare with, and the test says so.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

const BINDINGS: &str = include_str!("../src/bindings.rs");
const CONSTS: &str = include_str!("../src/consts.rs");

const HEADERS: &[&str] = &[
    "fabric",
    "fi_domain",
    "fi_endpoint",
    "fi_tagged",
    "fi_rma",
    "fi_atomic",
    "fi_cm",
    "fi_eq",
    "fi_errno",
    "fi_trigger",
    "fi_collective",
    "fi_ext",
    "fi_profile",
    "fi_xpu",
    "providers/fi_prov",
    "providers/fi_log",
    "providers/fi_peer",
];

/// Names that newer headers define differently, to keep old sources compiling, or that say which
/// release the header is of.
const VARYING: &[&str] = &[
    "FI_MAJOR_VERSION",
    "FI_MINOR_VERSION",
    "FI_REVISION_VERSION",
    "FI_VARIABLE_MSG",
    "FI_NOTIFY_FLAGS_ONLY",
    "FI_RESTRICTED_COMP",
    "FI_EP_SOCK_STREAM",
    "FI_ERRNO_MAX",
];

/// Of the peer interface, which is declared unstable and was rearranged up to 2.4.
const UNSTABLE: &[&str] = &["fi_peer_rx_entry", "fi_ops_srx_owner", "fi_ops_srx_peer"];

fn cc() -> Command {
    let mut cc = Command::new("cc");
    cc.arg("-w");
    if let Some(dir) = std::env::var_os("LIBFABRIC_INCLUDE") {
        cc.arg("-I").arg(dir);
    }
    cc
}

fn includes() -> String {
    let mut text = String::from(
        "#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n#include <sys/types.h>\n\
         #define container_of(p, t, f) ((t *) ((char *) (p) - offsetof(t, f)))\n\
         #include <rdma/fabric.h>\n",
    );
    for header in HEADERS {
        writeln!(text, "#if __has_include(<rdma/{header}.h>)\n#include <rdma/{header}.h>\n#endif").unwrap();
    }
    text
}

fn tmp(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The headers after the preprocessor, `None` if there are none.
fn preprocessed() -> Option<String> {
    let source = tmp("headers.c");
    std::fs::write(&source, includes()).unwrap();
    let output = cc().arg("-E").arg("-P").arg(&source).output().ok()?;
    match output.status.success() {
        true => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            eprintln!("{}", String::from_utf8_lossy(&output.stderr));
            None
        }
    }
}

fn words(text: &str) -> HashSet<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect()
}

/// What stands in the braces of `struct name { … }`.
fn body<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let start = text.find(&format!("struct {name} {{"))?;
    let open = start + text[start..].find('{')?;
    let mut depth = 0;
    for (at, c) in text[open..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&text[open..open + at]);
        }
    }
    None
}

/// `(struct, field or none for the size, value)`, from the assertions bindgen wrote.
fn layouts() -> Vec<(String, Option<String>, u64)> {
    let mut found = Vec::new();
    let mut rest = BINDINGS;
    while let Some(at) = rest.find("[\"") {
        rest = &rest[at + 2..];
        let (what, after) = rest.split_once("\"]").unwrap();
        let number = || {
            let end = after.find("usize];").unwrap();
            let start = after[..end].rfind("- ").unwrap() + 2;
            after[start..end].parse().unwrap()
        };
        if let Some(name) = what.strip_prefix("Size of ") {
            found.push((name.to_owned(), None, number()));
        } else if let Some(path) = what.strip_prefix("Offset of field: ") {
            let (name, field) = path.split_once("::").unwrap();
            let field = field.trim_end_matches('_');
            match (name, field) {
                ("fi_domain_attr", "anon1") => {
                    for field in ["data_progress", "progress"] {
                        found.push((name.to_owned(), Some(field.to_owned()), number()));
                    }
                }
                ("fi_mr_attr", "anon1") => {
                    for field in ["mr_iov", "dmabuf"] {
                        found.push((name.to_owned(), Some(field.to_owned()), number()));
                    }
                }
                _ => found.push((name.to_owned(), Some(field.to_owned()), number())),
            }
        }
        rest = after;
    }
    found.retain(|(name, _, _)| !name.contains("__bindgen_ty") && !UNSTABLE.contains(&name.as_str()));
    found
}

/// `(name, value)` of every numeric constant that is written as a literal.
fn constants() -> Vec<(&'static str, i128)> {
    BINDINGS
        .lines()
        .chain(CONSTS.lines())
        .filter_map(|line| {
            let (name, rest) = line.strip_prefix("pub const ")?.split_once(": ")?;
            let value = rest.split_once("= ")?.1.trim_end_matches(';');
            let value = match value.split_once(" << ") {
                Some((one, by)) => one.parse::<i128>().ok()? << by.parse::<u32>().ok()?,
                None => match value.replace('_', "").strip_prefix("0x") {
                    Some(hex) => i128::from_str_radix(hex, 16).ok()?,
                    None => value.parse().ok()?,
                },
            };
            Some((name, value))
        })
        .filter(|(name, _)| name.starts_with("FI_") && !VARYING.contains(name))
        .collect()
}

#[test]
fn as_the_c_compiler_sees_it() {
    let Some(headers) = preprocessed() else {
        assert!(std::env::var_os("LIBFABRIC_INCLUDE").is_none());
        eprintln!("skipped: no C compiler or no rdma/fabric.h (set LIBFABRIC_INCLUDE)");
        return;
    };
    let known = words(&headers);

    let mut probe = includes();
    let mut expected = Vec::new();
    probe.push_str("int main(void) {\n");
    for (name, field, value) in layouts() {
        let Some(body) = body(&headers, &name) else {
            continue;
        };
        match field {
            None => {
                writeln!(probe, "printf(\"%zu\\n\", sizeof(struct {name}));").unwrap();
                expected.push((format!("size of {name}"), i128::from(value), true));
            }
            Some(field) if words(body).contains(&*field) => {
                let line = format!("printf(\"%zu\\n\", offsetof(struct {name}, {field}));");
                writeln!(probe, "{line}").unwrap();
                expected.push((format!("{name}.{field}"), i128::from(value), false));
            }
            Some(_) => {}
        }
    }
    for (name, value) in constants() {
        // The cast makes the two's complement of 64 bits of both sides.
        let print = format!("printf(\"%llu\\n\", (unsigned long long) ({name}));");
        let otherwise = format!("puts(\"{}\");", value as u64);
        match known.contains(name) {
            true => writeln!(probe, "{print}"),
            false => writeln!(probe, "#ifdef {name}\n{print}\n#else\n{otherwise}\n#endif"),
        }
        .unwrap();
        expected.push((name.to_owned(), i128::from(value as u64), false));
    }
    probe.push_str("return 0;\n}\n");

    let (source, program) = (tmp("probe.c"), tmp("probe"));
    std::fs::write(&source, probe).unwrap();
    let compiled = cc().arg("-o").arg(&program).arg(&source).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&program).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let values: Vec<i128> = output.lines().map(|line| line.parse().unwrap()).collect();

    assert_eq!(values.len(), expected.len());
    assert!(expected.len() > 600, "{} things compared", expected.len());
    let wrong: Vec<String> = expected
        .iter()
        .zip(&values)
        .filter(|((_, ours, prefix), theirs)| match prefix {
            true => *theirs > ours,
            false => *theirs != ours,
        })
        .map(|((what, ours, _), theirs)| format!("{what}: {ours} here, {theirs} in C"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    let shorter =
        expected.iter().zip(&values).filter(|((_, ours, prefix), theirs)| *prefix && *theirs < ours);
    for ((what, ours, _), theirs) in shorter {
        println!("{what}: {ours} here, {theirs} in C");
    }
    println!("{} things compared", expected.len());
}

/// The sizes that decide what fits an older core: a change here is a change of the ABI.
#[test]
fn sizes_of_the_newest_headers() {
    use libfabric_sys::*;
    macro_rules! sizes {
        ($($name:ident $size:literal)*) => {
            $(assert_eq!(size_of::<$name>(), $size, stringify!($name));)*
        };
    }
    sizes! {
        fi_info 120 fi_tx_attr 80 fi_rx_attr 64 fi_ep_attr 104 fi_domain_attr 232 fi_fabric_attr 32
        fi_mr_attr 112 fi_cq_attr 48 fi_cntr_attr 32 fi_eq_attr 32 fi_av_attr 48
        fi_cq_tagged_entry 48 fi_cq_err_entry 88 fi_eq_err_entry 48
        fi_context 32 fi_context2 64 fi_triggered_context 32 fi_triggered_context2 64
        fi_provider 72 fid 24 fid_fabric 40 fid_domain 40 fid_ep 80 fid_mr 40 fid_av 32 fid_cq 32
        fi_ops 56 fi_ops_fabric 56 fi_ops_domain 104 fi_ops_ep 72 fi_ops_av 96 fi_ops_cq 72
        fi_ops_cntr 72 fi_ops_msg 80 fi_ops_tagged 80 fi_ops_rma 80 fi_ops_cm 80 fi_ops_mr 32
        fi_ops_eq 48
    }
}

/// Error numbers are those of the machine this is built for, not of the one that ran bindgen.
#[test]
fn error_numbers() {
    use libfabric_sys::*;
    assert_eq!(
        (FI_EAGAIN, FI_ENOSYS, FI_EMSGSIZE, FI_ECONNREFUSED, FI_ETIMEDOUT, FI_ECANCELED),
        (libc::EAGAIN, libc::ENOSYS, libc::EMSGSIZE, libc::ECONNREFUSED, libc::ETIMEDOUT, libc::ECANCELED)
    );
}
