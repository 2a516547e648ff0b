//! `millrace cluster init --dir D`: the authority, the cluster's id, the first operator.

use millrace_protocol::session::Role;
use serde::Serialize;

use crate::{authority, context::Context, exit::Exit};

#[derive(Serialize)]
struct Made {
    cluster: String,
    dir: String,
    admin_identity: String,
}

/// Makes both files. Nothing is sent anywhere.
pub(crate) fn run(context: &Context) -> anyhow::Result<Exit> {
    let dir = context.dir()?;
    let made = authority::create(&dir)?;
    let admin = authority::admin_file(&dir);
    authority::issue(&made, &authority::whole(Role::Admin), &admin)?;
    let report = Made {
        cluster: made.cluster().to_string(),
        dir: dir.display().to_string(),
        admin_identity: admin.display().to_string(),
    };
    context.output.result(&report, || {
        format!(
            "cluster {} is made\n\
             next: `millrace cluster invite --dir {1} --role metadata --out FILE`, the same for \
             each target and client\n\
             keep {1}/authority.pem safe: whoever reads it can join as anything",
            report.cluster, report.dir
        )
    })?;
    Ok(Exit::Done)
}
