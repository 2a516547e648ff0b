//! Requests about links and their buckets.

use millrace_protocol::{
    admin::{
        AddLink, LinkOptionsReply, LinkReply, ListLinkOptions, ListRemovals, RemovalsReply,
        RemoveLink, SetLinkOptions,
    },
    ahead::{FetchPoliciesReply, ListFetchPolicies, SetFetchPolicy},
    bucket::{
        AutoExportsReply, CheckLink, CheckLinkReply, DeletePropagationReply, HostCheck, HostTrial,
        ListAutoExports, ListDeletePropagation, ListUploads, SetAutoExport, SetDeletePropagation,
        TryLink, TryLinkReply,
    },
    left_out::ShowLeftOut,
    refresh::{ListRefreshIntervals, RefreshIntervalsReply, SetRefreshInterval},
    requests::ListRequests,
    session::Done,
};

hydrated! {
    AddLink => |hydration, _, it| LinkReply { link: hydration.add_link(&it).await? };
    RemoveLink => |hydration, _, it| {
        hydration.remove_link(&it).await?;
        Done::default()
    };
    ListRemovals => |hydration, _, _| {
        RemovalsReply { links: hydration.list_removals().await? }
    };
    ListLinkOptions => |hydration, _, _| {
        LinkOptionsReply { links: hydration.list_link_options().await? }
    };
    SetLinkOptions => |hydration, _, it| {
        LinkOptionsReply { links: vec![hydration.set_link_options(&it).await?] }
    };
    ListAutoExports => |hydration, _, _| {
        AutoExportsReply { links: hydration.list_auto_exports().await? }
    };
    SetAutoExport => |hydration, _, it| {
        AutoExportsReply { links: hydration.set_auto_export(&it).await? }
    };
    ListRefreshIntervals => |hydration, _, _| {
        RefreshIntervalsReply { links: hydration.list_refresh_intervals().await? }
    };
    SetRefreshInterval => |hydration, _, it| {
        RefreshIntervalsReply { links: hydration.set_refresh_interval(&it).await? }
    };
    ListDeletePropagation => |hydration, _, _| {
        DeletePropagationReply { links: hydration.list_delete_propagation().await? }
    };
    SetDeletePropagation => |hydration, _, it| {
        DeletePropagationReply { links: hydration.set_delete_propagation(&it).await? }
    };
    ListFetchPolicies => |hydration, _, _| {
        FetchPoliciesReply { links: hydration.list_fetch_policies().await? }
    };
    SetFetchPolicy => |hydration, _, it| {
        FetchPoliciesReply { links: hydration.set_fetch_policy(&it).await? }
    };
    ListRequests => |hydration, _, _| hydration.list_requests().await?;
    ListUploads => |hydration, _, it| hydration.list_uploads(&it).await?;
    ShowLeftOut [caller] => |hydration, top, it| hydration.show_left_out(&top, &it).await?;
    TryLink => |hydration, _, it| hydration.try_link(&it).await?;
    // Of tools from before `TryLink`.
    CheckLink => |hydration, _, it| {
        without_trials(hydration.try_link(&TryLink { path: it.path }).await?)
    };
}

fn without_trials(reply: TryLinkReply) -> CheckLinkReply {
    let check = |HostTrial { host, took_ms, result }| {
        let result = result.map(|_| ());
        HostCheck { host, took_ms, result }
    };
    let hosts = reply.hosts.into_iter().map(check).collect();
    CheckLinkReply { bucket: reply.bucket, mode: reply.mode, hosts }
}
