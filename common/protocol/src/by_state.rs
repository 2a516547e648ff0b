//! Jobs over the files that stand against their bucket in some ways.

use millrace_types::{ErrorKind, Failure, JobId};
use rkyv::{Archive, Deserialize, Serialize};

use crate::{admin::FileState, job_options::StartWithOptions};

/// Starts a job over the files that are in one of some states when it comes to them.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct StartByState {
    /// The job, and which files otherwise; any but an import.
    pub job: StartWithOptions,
    /// The least seconds from the last use of a file to the job's start, as of
    /// [`StartUnused`](crate::unused::StartUnused); none: it does not look at that.
    pub unused: Option<u64>,
    /// The states, each once; at least one. What is no file has none.
    pub states: Vec<FileState>,
}

/// Asks in which states files must be that a job works on.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ShowStates {
    /// The job.
    pub id: JobId,
}

/// In which states files must be that a job works on.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct StatesReply {
    /// Empty for a job that does not look at that.
    pub states: Vec<FileState>,
}

impl StartByState {
    /// Checks the states.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for none, and for more than there are.
    pub fn check(&self) -> Result<(), Failure> {
        match (1..=FileState::ALL.len()).contains(&self.states.len()) {
            true => Ok(()),
            false => {
                let words = format!("a job takes 1 to {} states", FileState::ALL.len());
                Err(Failure::new(ErrorKind::InvalidArgument, words))
            }
        }
    }
}
