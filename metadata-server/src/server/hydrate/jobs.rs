//! Requests about jobs. Who may see which is checked by [`super::super::jobs`].

use millrace_protocol::{
    admin::{CancelJob, JobReply, StartJob},
    by_state::{ShowStates, StartByState},
    file_list::AppendFiles,
    job_detail::ShowJobDetail,
    job_options::{FetchReport, PutReport, ShowJobOptions, StartWithOptions},
    job_waits::ShowJobWaits,
    selection::{RetryJob, ShowSelection, StartSelected},
    unused::{ShowUnused, StartUnused},
};

hydrated! {
    StartJob [caller] => |hydration, top, it| {
        JobReply { job: hydration.start_job(&top, &it).await? }
    };
    StartSelected [start.caller] => |hydration, top, it| {
        JobReply { job: hydration.start_selected(&top, &it).await? }
    };
    StartWithOptions [start.caller] => |hydration, top, it| {
        JobReply { job: hydration.start_with_options(&top, &it).await? }
    };
    StartUnused [job.start.caller] => |hydration, top, it| {
        JobReply { job: hydration.start_unused(&top, &it).await? }
    };
    StartByState [job.start.caller] => |hydration, top, it| {
        JobReply { job: hydration.start_by_state(&top, &it).await? }
    };
    RetryJob [caller] => |hydration, _, it| JobReply { job: hydration.retry_job(&it).await? };
    CancelJob [caller] => |hydration, _, it| JobReply { job: hydration.cancel_job(&it).await? };
    AppendFiles [caller] => |hydration, _, it| hydration.append_files(it).await?;
    FetchReport [caller] => |hydration, _, it| hydration.fetch_report(&it).await?;
    PutReport [caller] => |hydration, _, it| hydration.put_report(it).await?;
    ShowJobDetail => |hydration, _, it| hydration.show_job_detail(it.id).await?;
    ShowJobWaits => |hydration, _, it| hydration.show_job_waits(it.id);
    ShowJobOptions => |hydration, _, it| hydration.show_job_options(it.id).await?;
    ShowSelection => |hydration, _, it| hydration.show_selection(it.id).await?;
    ShowStates => |hydration, _, it| hydration.show_states(it.id).await?;
    ShowUnused => |hydration, _, it| hydration.show_unused(it.id).await?;
}
