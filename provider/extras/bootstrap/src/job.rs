//! Which way the environment offers.

use std::ffi::OsString;
use std::time::Duration;

use crate::pmi::Pmi;
use crate::pmix::Pmix;
use crate::socket::Join;
use crate::{Error, Exchange, Single, names};

/// How long processes started by hand wait for each other, in seconds.
const TIMEOUT: u64 = 30;

/// Where variables come from: the process's environment, or a test's.
pub trait Environment {
    /// The value of a variable.
    fn value(&self, name: &str) -> Option<OsString>;
}

impl<F: Fn(&str) -> Option<OsString>> Environment for F {
    fn value(&self, name: &str) -> Option<OsString> {
        self(name)
    }
}

/// Joins the job that this process was started in. Called once: a process manager's descriptor is taken.
pub fn find() -> Result<Box<dyn Exchange>, Error> {
    // SAFETY: variables of a process manager's name a descriptor that it made for this process.
    unsafe { find_in(&|name: &str| std::env::var_os(name)) }
}

/// The same by other variables.
///
/// # Safety
///
/// If `PMI_FD` is there, it names a stream socket that nothing else in the process uses.
pub unsafe fn find_in(environment: &dyn Environment) -> Result<Box<dyn Exchange>, Error> {
    let there = |name: &str| environment.value(name).is_some();
    let forced = text(environment, names::BOOTSTRAP)?;
    let way = match forced.as_deref() {
        Some("") | None => None,
        Some(way @ ("strait" | "pmi" | "pmix" | "single")) => Some(way),
        Some(other) => {
            let name = names::BOOTSTRAP;
            return Err(Error::Environment(format!("{name} is strait, pmi, pmix or single, not {other:?}")));
        }
    };
    let found = match way {
        Some(way) => way,
        None if there(names::RANK) || there(names::SIZE) || there(names::EXCHANGE) => "strait",
        None if there("PMI_FD") => "pmi",
        None if there("PMIX_NAMESPACE") && there("PMIX_RANK") => "pmix",
        None => "single",
    };
    match found {
        "strait" => Ok(Box::new(by_socket(environment)?.join()?)),
        "pmi" => {
            let number = |name: &str| needed::<usize>(environment, name);
            let fd = needed::<i32>(environment, "PMI_FD")?;
            // SAFETY: the caller's promise.
            Ok(Box::new(unsafe { Pmi::of_descriptor(fd, number("PMI_RANK")?, number("PMI_SIZE")?) }?))
        }
        "pmix" => Ok(Box::new(Pmix::start(environment.value(names::PMIX).map(Into::into))?)),
        _ if way.is_none() => single(environment),
        _ => Ok(Box::new(Single)),
    }
}

/// Without a way to the others: right if there are none.
fn single(environment: &dyn Environment) -> Result<Box<dyn Exchange>, Error> {
    for name in ["PMI_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS"] {
        let count = text(environment, name)?.and_then(|text| text.parse::<usize>().ok());
        if count.is_some_and(|count| count > 1) {
            return Err(Error::Environment(format!(
                "{name} says that the job has {} processes, and the launcher gives neither PMI-1 (PMI_FD) nor PMIx: \
                 start it by `strait run`, with srun --mpi=pmix, or set {}, {} and {}",
                count.unwrap_or_default(),
                names::RANK,
                names::SIZE,
                names::EXCHANGE
            )));
        }
    }
    Ok(Box::new(Single))
}

fn by_socket(environment: &dyn Environment) -> Result<Join, Error> {
    let address: crate::Address = needed(environment, names::EXCHANGE)?;
    let token = text(environment, names::JOB)?.unwrap_or_default();
    if token.is_empty() && matches!(address, crate::Address::Tcp(_)) {
        return Err(Error::Environment(format!(
            "an exchange by TCP needs {}: a word that only the job's processes know",
            names::JOB
        )));
    }
    let timeout = match text(environment, names::TIMEOUT)? {
        None => TIMEOUT,
        Some(_) => needed(environment, names::TIMEOUT)?,
    };
    Ok(Join {
        rank: needed(environment, names::RANK)?,
        size: needed(environment, names::SIZE)?,
        address,
        token,
        launcher: environment.value(names::LAUNCHER).is_some(),
        timeout: Duration::from_secs(timeout),
    })
}

fn text(environment: &dyn Environment, name: &str) -> Result<Option<String>, Error> {
    let text = |value: OsString| {
        value.into_string().map_err(|value| Error::Environment(format!("{name} is no text: {value:?}")))
    };
    environment.value(name).map(text).transpose()
}

/// A variable that has to be there and to make sense.
fn needed<T: std::str::FromStr>(environment: &dyn Environment, name: &str) -> Result<T, Error>
where
    T::Err: std::fmt::Display,
{
    let text = text(environment, name)?.ok_or_else(|| {
        Error::Environment(format!("{name} is not set, which other variables of the job need"))
    })?;
    text.parse().map_err(|e| Error::Environment(format!("{name} is {text:?}: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Result<Box<dyn Exchange>, Error> {
        let value = |name: &str| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(*value))
        };
        // SAFETY: no test names a descriptor that is open.
        unsafe { find_in(&value) }
    }

    #[test]
    fn without_a_launcher_the_job_has_one_process() {
        let mut job = found(&[]).unwrap();
        assert_eq!((job.rank(), job.size(), job.way()), (0, 1, "single"));
        assert_eq!(job.allgather(b"mine").unwrap(), [b"mine"]);
        job.barrier().unwrap();
        let long = vec![0; crate::LONGEST + 1];
        assert!(job.allgather(&long).is_err());
    }

    #[test]
    fn an_environment_that_makes_no_sense_is_an_error_that_says_so() {
        for (variables, wanted) in [
            (&[("PMI_SIZE", "4")][..], "PMI_SIZE says that the job has 4 processes"),
            (&[("STRAIT_RANK", "0")], "STRAIT_EXCHANGE is not set"),
            (
                &[("STRAIT_RANK", "0"), ("STRAIT_SIZE", "2"), ("STRAIT_EXCHANGE", "tcp:h:1")],
                "needs STRAIT_JOB",
            ),
            (
                &[("STRAIT_RANK", "2"), ("STRAIT_SIZE", "2"), ("STRAIT_EXCHANGE", "unix:@x")],
                "rank 2 of a job of 2",
            ),
            (
                &[("STRAIT_RANK", "-1"), ("STRAIT_SIZE", "2"), ("STRAIT_EXCHANGE", "unix:@x")],
                "STRAIT_RANK is \"-1\"",
            ),
            (&[("STRAIT_BOOTSTRAP", "mpi")], "STRAIT_BOOTSTRAP is strait, pmi, pmix or single"),
            (&[("PMI_FD", "9999"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")], "no open descriptor"),
            (&[("PMI_FD", "9999")], "PMI_RANK is not set"),
        ] {
            let error = found(variables).unwrap_err();
            assert!(error.text().contains(wanted), "{variables:?}: {error}");
        }
    }
}
