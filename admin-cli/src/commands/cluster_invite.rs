//! `millrace cluster invite --dir D --role R --out FILE`: the identity of one node.

use millrace_protocol::session::Role;
use millrace_transport::authority::Grant;
use serde::Serialize;

use crate::{
    arguments::{InviteArguments, RoleName},
    authority,
    context::Context,
    exit::{Exit, Misuse},
};

#[derive(Serialize)]
struct Invited {
    cluster: String,
    role: &'static str,
    host: String,
    subtree: Option<String>,
    squash_root: bool,
    out: String,
}

/// Issues the certificate and writes the bundle. Nothing is sent anywhere.
pub(crate) fn run(context: &Context, arguments: InviteArguments) -> anyhow::Result<Exit> {
    let grant = grant(&arguments)?;
    let authority = authority::existing(&context.dir()?)?;
    authority::issue(&authority, &grant, &arguments.out)?;
    let report = Invited {
        cluster: authority.cluster().to_string(),
        role: grant.role.name(),
        host: grant.host.to_string(),
        subtree: arguments.subtree,
        squash_root: grant.squash_root,
        out: arguments.out.display().to_string(),
    };
    context.output.result(&report, || {
        format!(
            "{} is the identity of {} {}; move it to that node and nowhere else",
            report.out, report.role, report.host
        )
    })?;
    Ok(Exit::Done)
}

fn grant(arguments: &InviteArguments) -> Result<Grant, Misuse> {
    let role = match arguments.role {
        RoleName::Metadata => Role::Metadata,
        RoleName::Target => Role::Target,
        RoleName::Client => Role::Client,
        RoleName::Admin => Role::Admin,
    };
    let restricted = arguments.subtree.is_some() || arguments.squash_root;
    if restricted && role != Role::Client {
        let text = "--subtree and --squash-root restrict clients; use them with --role client";
        return Err(Misuse(text.into()));
    }
    let subtree = arguments.subtree.as_deref().map(subtree).transpose()?;
    Ok(Grant { subtree, squash_root: arguments.squash_root, ..authority::whole(role) })
}

/// A directory from the root of the file system, also written as `mr:/...`.
fn subtree(text: &str) -> Result<Vec<u8>, Misuse> {
    let path = text.strip_prefix("mr:").unwrap_or(text);
    let names: Vec<_> = path.split('/').filter(|name| !name.is_empty()).collect();
    if !path.starts_with('/') || names.iter().any(|&name| name == "." || name == "..") {
        let text = format!("{text} is no subtree; write a path from the root, such as /train");
        return Err(Misuse(text));
    }
    Ok(format!("/{}", names.join("/")).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(role: RoleName, path: Option<&str>) -> InviteArguments {
        InviteArguments {
            role,
            subtree: path.map(str::to_owned),
            squash_root: false,
            out: "x.pem".into(),
        }
    }

    #[test]
    fn a_subtree_is_a_path_from_the_root_and_for_clients_alone() {
        let client = grant(&arguments(RoleName::Client, Some("mr:/a//b/"))).unwrap();
        assert_eq!(client.subtree.as_deref(), Some(&b"/a/b"[..]));
        for bad in ["a", "/a/../b", ""] {
            assert!(grant(&arguments(RoleName::Client, Some(bad))).is_err(), "{bad}");
        }
        let error = grant(&arguments(RoleName::Target, Some("/a"))).unwrap_err();
        assert!(error.to_string().contains("--role client"));
    }
}
