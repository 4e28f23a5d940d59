//! What is set that Strait, libfabric, UCX and Open MPI read, and whether it can hold.

use std::path::Path;

use settings::{ALIAS, Kind, LINKS, PORTS, Setting};

use super::finding::{Finding, Level};
use crate::fabric::{self, Library};
use crate::ucx_env;

const AREA: &str = "settings";

/// What the environment says of a variable, if anything.
type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// All findings of the process's environment.
pub fn findings() -> Vec<Finding> {
    let env = |name: &str| {
        let value = std::env::var_os(name)?.to_string_lossy().trim().to_owned();
        (!value.is_empty()).then_some(value)
    };
    let names: Vec<String> =
        std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
    let mut all = values(&env);
    all.extend(unknown(&names));
    all.extend(providers(&env));
    all.extend(alias(&env));
    all.extend(ports(&env, &std::fs::read_to_string(LOCAL).unwrap_or_default()));
    all.extend(of_ucx(&env));
    all.extend(provider_path(&env));
    let of_libfabric = crate::info::environment();
    let is_read =
        |name: &str| of_libfabric.contains_key(name) || settings::OTHERS.iter().any(|s| s.name == name);
    let set: Vec<String> =
        names.iter().filter(|name| is_read(name)).filter_map(|name| listed(name, &env)).collect();
    all.push(Finding::ok(AREA, if set.is_empty() { "none".into() } else { set.join(" ") }));
    all
}

fn problem(text: impl Into<String>) -> Finding {
    Finding::new(AREA, Level::Problem, text)
}

/// Values that cannot hold.
fn values(env: Env<'_>) -> Vec<Finding> {
    let parameters = crate::info::parameter_problems().into_iter();
    let others = settings::OTHERS.iter().filter_map(|s| s.check(&env(&s.variable())?).complaint);
    parameters.chain(others).map(|line| problem(line).means("what was asked for does not hold")).collect()
}

/// Names that are no setting's. One that is like no other may be a script's own.
fn unknown(names: &[String]) -> Vec<Finding> {
    let all = settings::unknown_of(names.iter().map(String::as_str), "");
    let of_a_library = |name: &str| {
        ["FI_STRAIT_", "STRAIT_UCX_", "STRAIT_RPIPE_", "STRAIT_MPI_"].iter().any(|p| name.starts_with(p))
    };
    let finding = |u: settings::Unknown| match u.near.is_some() || of_a_library(&u.name) {
        true => problem(u.line).means("what was asked for does not hold"),
        false => Finding::new(AREA, Level::Note, u.line).cure("unset it, unless a script of yours reads it"),
    };
    all.into_iter().map(finding).collect()
}

/// Providers that FI_STRAIT_LINKS wants below and that libfabric does not have. With FI_PROVIDER set it shows
/// those that are named alone.
fn providers(env: Env<'_>) -> Vec<Finding> {
    let list = env(&LINKS.variable()).unwrap_or_default();
    let named: Vec<&str> = list.split(',').filter_map(|link| link.trim().strip_prefix("ofi:")).collect();
    if named.is_empty() || env("FI_PROVIDER").is_some() {
        return Vec::new();
    }
    let Ok(library) = Library::load(None) else { return Vec::new() };
    let absent = named.into_iter().map(str::trim).filter(|name| !fabric::has_provider(&library, name));
    absent
        .map(|name| {
            problem(format!("{}={list}: this libfabric offers no provider {name} here", LINKS.variable()))
                .means("an endpoint cannot be opened, or takes tcp if that is in the list")
                .cure("name a provider that fi_info(1) lists, as ofi:NAME, or take it out of the list")
        })
        .collect()
}

/// A name that a provider of libfabric's own has.
fn alias(env: Env<'_>) -> Option<Finding> {
    const BUILT_IN: [&str; 7] = ["tcp", "udp", "shm", "sm2", "sockets", "net", "verbs"];
    let name = env(&ALIAS.variable()).filter(|name| BUILT_IN.contains(&name.as_str()))?;
    let replaces = env("FI_PROVIDER_PATH").is_some_and(|path| path.starts_with('+'));
    (!replaces).then(|| {
        problem(format!("{}={name}: libfabric has a provider of its own of that name", ALIAS.variable()))
            .means("that one keeps the name, and programs get it instead of Strait")
            .cure("another name, or FI_PROVIDER_PATH=+/path/to/libstrait-fi.so")
    })
}

const LOCAL: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Ports that the kernel gives to other sockets, too.
fn ports(env: Env<'_>, local: &str) -> Option<Finding> {
    let (first, last) = PORTS.read(&env(&PORTS.variable())?).ports()?;
    let mut words = local.split_whitespace().map(str::parse::<u16>);
    let (Some(Ok(from)), Some(Ok(to))) = (words.next(), words.next()) else { return None };
    (first <= to && from <= last).then(|| {
        let what = PORTS.variable();
        Finding::new(AREA, Level::Note, format!("{what}={first}-{last} overlaps {from}-{to}, from which the kernel takes ports"))
            .means("connections of other programs take ports of the range")
            .cure("a range outside of sysctl net.ipv4.ip_local_port_range, or sysctl net.ipv4.ip_local_reserved_ports")
    })
}

/// UCX with the transport turned on in a way in which it, or Open MPI, does not take it.
fn of_ucx(env: Env<'_>) -> Vec<Finding> {
    let tls = env("UCX_TLS").unwrap_or_default();
    let is_on = tls.split(',').any(|name| name.trim() == "strait");
    let loads = ["LD_PRELOAD", "UCX_PLUGIN_PATH"]
        .iter()
        .any(|name| env(name).unwrap_or_default().split([':', ' ']).any(ucx_env::is_ours));
    let env_cure = "eval \"$(strait ucx-env)\" in the shell that starts the job";
    if is_on != loads {
        let finding = match is_on {
            true => problem(format!(
                "UCX_TLS={tls}, and neither LD_PRELOAD nor UCX_PLUGIN_PATH names the transport"
            ))
            .means("UCX has no transport strait"),
            false if tls.is_empty() || tls == "all" => Finding::new(
                AREA,
                Level::Note,
                "the UCX transport is loaded, and UCX_TLS does not name strait",
            )
            .means("UCX chooses among all transports, of which strait is one"),
            false => problem(format!("the UCX transport is loaded, and UCX_TLS={tls} does not name strait"))
                .means("UCX chooses among those that are named"),
        };
        return vec![finding.cure(env_cure)];
    }
    let any = |name: &str| env(name).is_some_and(|value| value == "any");
    if !is_on || ucx_env::OPEN_MPI.iter().all(|name| any(name)) {
        return Vec::new();
    }
    vec![
        Finding::new(
            AREA,
            Level::Note,
            "UCX_TLS names strait, and Open MPI's pml_ucx_tls and pml_ucx_devices are not `any`",
        )
        .means("Open MPI takes UCX for network cards alone by default: jobs run over its own shared memory")
        .cure(format!("{env_cure}, or mpirun --mca pml_ucx_tls any --mca pml_ucx_devices any")),
    ]
}

/// A path without the provider, and a filter that keeps it out.
fn provider_path(env: Env<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let names_it = |dir: &Path| dir.join(crate::info::FILE).exists() || dir.ends_with(crate::info::FILE);
    let path = env("FI_PROVIDER_PATH").unwrap_or_default();
    if !path.is_empty() && !path.split([':', '@', '+']).any(|dir| names_it(Path::new(dir))) {
        findings.push(
            problem(format!("FI_PROVIDER_PATH={path} has no {}", crate::info::FILE))
                .means("libfabric looks nowhere else, and passes Strait over in silence")
                .cure("name the directory of the provider, or unset it"),
        );
    }
    let filter = env("FI_PROVIDER").unwrap_or_default();
    if crate::info::filtered_out(&filter) {
        findings.push(
            problem(format!("FI_PROVIDER={filter} keeps strait out")).cure("unset it, or FI_PROVIDER=strait"),
        );
    }
    findings
}

/// A variable as it is listed: secrets are not shown.
fn listed(name: &str, env: Env<'_>) -> Option<String> {
    let value = env(name)?;
    let mut all = settings::ALL.iter().chain(settings::OTHERS);
    let is_secret = all.any(|s: &Setting| s.variable() == name && matches!(s.kind, Kind::Secret(_)));
    Some(format!("{name}={}", if is_secret { "(not shown)" } else { &value }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env<'a>(set: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn values_of_the_other_libraries_are_checked() {
        let found =
            values(&env(&[("STRAIT_UCX_CMA", "nope"), ("STRAIT_UCX_RING", "64K"), ("STRAIT_RANK", "x")]));
        let lines: Vec<&str> = found.iter().map(|f| f.text.as_str()).collect();
        assert!(
            lines.len() == 2 && lines[0].starts_with("STRAIT_UCX_CMA=nope is not understood"),
            "{lines:?}"
        );
        assert!(lines[1].starts_with("STRAIT_RANK=x "), "{lines:?}");
    }

    #[test]
    fn names_near_a_setting_are_problems_and_others_are_noted() {
        let names = ["STRAIT_UCX_REPROT", "STRAIT_LINKS", "STRAIT_MY_SCRIPT"].map(str::to_owned);
        let found = unknown(&names);
        let problems: Vec<&str> =
            found.iter().filter(|f| f.level == Level::Problem).map(|f| f.text.as_str()).collect();
        assert_eq!((found.len(), problems.len()), (3, 2), "{found:?}");
        assert!(problems.iter().any(|l| l.contains("is FI_STRAIT_LINKS meant?")), "{problems:?}");
    }

    #[test]
    fn a_name_of_libfabric_and_ports_of_the_kernel_are_found() {
        assert!(alias(&env(&[("FI_STRAIT_ALIAS", "tcp")])).is_some());
        assert!(alias(&env(&[("FI_STRAIT_ALIAS", "efa")])).is_none());
        let replaces = [("FI_STRAIT_ALIAS", "tcp"), ("FI_PROVIDER_PATH", "+/x/libstrait-fi.so")];
        assert!(alias(&env(&replaces)).is_none());
        let of = |range| ports(&env(&[("FI_STRAIT_PORTS", range)]), "32768\t60999\n");
        assert!(of("40000-40999").is_some_and(|f| f.text.contains("32768-60999")));
        assert!(of("20000-20999").is_none() && of("many").is_none());
    }

    #[test]
    fn open_mpi_over_ucx_needs_both_lists_open() {
        let file = std::env::temp_dir().join(ucx_env::FILE);
        let on = [("UCX_TLS", "strait"), ("LD_PRELOAD", file.to_str().unwrap())];
        let found = of_ucx(&env(&on));
        assert!(found.len() == 1 && found[0].text.contains("pml_ucx_tls"), "{found:?}");
        let all = [on[0], on[1], (ucx_env::OPEN_MPI[0], "any"), (ucx_env::OPEN_MPI[1], "any")];
        assert_eq!(of_ucx(&env(&all)), []);
        assert!(of_ucx(&env(&on[..1]))[0].text.contains("neither LD_PRELOAD"));
        assert!(of_ucx(&env(&on[1..]))[0].text.contains("does not name strait"));
        assert_eq!(of_ucx(&env(&on[1..]))[0].level, Level::Note, "UCX may choose it");
        assert_eq!(of_ucx(&env(&[on[1], ("UCX_TLS", "tcp,self")]))[0].level, Level::Problem);
        assert_eq!(of_ucx(&env(&[])), []);
    }

    #[test]
    fn a_secret_is_not_listed() {
        let set = [("STRAIT_RPIPE_KEY", "abracadabra"), ("STRAIT_UCX_CMA", "no")];
        assert_eq!(listed("STRAIT_RPIPE_KEY", &env(&set)), Some("STRAIT_RPIPE_KEY=(not shown)".into()));
        assert_eq!(listed("STRAIT_UCX_CMA", &env(&set)), Some("STRAIT_UCX_CMA=no".into()));
    }
}
