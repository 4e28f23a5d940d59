//! What `strait info` finds, as it prints it with `--json`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::parameter::Parameter;

/// Whether something works, and what there is to say about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub ok: bool,
    pub text: String,
}

impl Finding {
    pub(super) fn new(ok: bool, text: impl Into<String>) -> Finding {
        Finding { ok, text: text.into() }
    }
}

#[derive(Debug, Serialize)]
pub struct Found {
    pub strait: &'static str,
    pub libfabric: Libfabric,
    pub provider: Provider,
    pub links: Vec<Link>,
    pub cma: Finding,
    pub membarrier: Finding,
    pub container: Vec<String>,
    pub memory: Vec<Memory>,
    pub adapters: Vec<Adapter>,
    pub limits: Vec<Limit>,
    pub cpus: Vec<usize>,
    pub environment: BTreeMap<String, String>,
    pub parameters: Vec<Parameter>,
    /// What is wrong with variables that are named like parameters and are none.
    pub unknown: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Libfabric {
    pub found: bool,
    pub path: Option<String>,
    pub version: Option<String>,
    pub error: Option<String>,
}

#[derive(Debug, Default, Serialize)]
pub struct Provider {
    /// libfabric offers endpoints of it.
    pub offered: bool,
    pub version: Option<String>,
    /// The file that libfabric loaded.
    pub path: Option<String>,
    /// Why it is not offered, and what to do.
    pub advice: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Link {
    pub name: String,
    #[serde(flatten)]
    pub finding: Finding,
}

#[derive(Debug, Serialize)]
pub struct Memory {
    pub kind: &'static str,
    #[serde(flatten)]
    pub finding: Finding,
}

/// An RDMA device, and which memory it registers.
#[derive(Debug, Serialize)]
pub struct Adapter {
    pub name: Option<String>,
    #[serde(flatten)]
    pub finding: Finding,
}

#[derive(Debug, Serialize)]
pub struct Limit {
    pub name: &'static str,
    /// `None` is unlimited.
    pub soft: Option<u64>,
    pub hard: Option<u64>,
    pub bytes: bool,
    pub means: &'static str,
}
