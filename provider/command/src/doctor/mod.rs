//! `strait doctor`: what of this host Strait can be used with, what stands in the way, and what a program did
//! with it.

mod cause;
mod causes;
mod far;
mod fault;
mod find;
mod finding;
mod guess;
mod host;
mod job;
mod journal;
mod running;
mod scratch;
mod stacks;
mod summary;
mod variables;
mod waits;

use serde::Serialize;

use crate::fabric::Error;
use finding::{Finding, Level};

pub use causes::todo;
pub use host::probe;
pub use job::{Options as JobOptions, run as job};
pub use journal::read as journal;
pub use scratch::Scratch;

#[derive(Debug, Serialize)]
struct Findings {
    strait: &'static str,
    ok: bool,
    findings: Vec<Finding>,
}

/// Looks around and prints; whether there is no problem.
pub fn run(json: bool) -> Result<bool, Error> {
    let mut findings = stacks::installed();
    findings.extend(stacks::stacks());
    findings.extend(variables::findings());
    findings.extend(host::host());
    findings.extend(host::devices());
    let ok = findings.iter().all(|f| f.level != Level::Problem);
    let found = Findings { strait: crate::version::VERSION, ok, findings };
    if json {
        let text = serde_json::to_string_pretty(&found).map_err(|e| e.to_string())?;
        crate::out::print(&(text + "\n"))?;
    } else {
        crate::out::print(&render(&found))?;
    }
    Ok(ok)
}

fn render(found: &Findings) -> String {
    let mut out = format!("strait {} on this host\n", found.strait);
    let mut area = "";
    for finding in &found.findings {
        if finding.area != area {
            area = finding.area;
            out += &format!("\n{area}\n");
        }
        out += &format!("  {} {}\n", finding.level.mark(), finding.text.replace('\n', "\n     "));
        for (what, text) in [("so", &finding.means), ("to do", &finding.cure)] {
            if let Some(text) = text {
                out += &format!("     {what}: {}\n", text.replace('\n', "\n       "));
            }
        }
    }
    let count = |level| found.findings.iter().filter(|f| f.level == level).count();
    match count(Level::Problem) {
        0 => out += "\nNo problem was found.\n",
        1 => out += "\n1 problem was found (!!).\n",
        n => out += &format!("\n{n} problems were found (!!).\n"),
    }
    out += "Whether a program uses Strait: strait doctor -- PROGRAM ARGUMENTS\n";
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_comes_with_its_consequence_and_its_cure() {
        let findings = vec![
            Finding::ok("host", "all is well"),
            Finding::new("host", Level::Problem, "no\ngood").means("it is slow").cure("mend it"),
        ];
        let text = render(&Findings { strait: "1", ok: false, findings });
        assert!(text.contains(
            "\nhost\n  ok all is well\n  !! no\n     good\n     so: it is slow\n     to do: mend it\n"
        ));
        assert!(text.contains("\n1 problem was found"), "{text}");
        assert_eq!(text.matches("\nhost\n").count(), 1);
    }
}
