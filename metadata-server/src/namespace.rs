//! The namespace: what an inode is, who may do what to it, and how a tree of them is read.
//!
//! Owns plain types and rules over a [`View`](crate::store::View) of the store. It changes nothing:
//! changes are made by [`crate::apply`] alone.
//!
//! Modules, in reading order: [`inode`], [`permission`], [`acl`], [`tree`] (reading a tree and its
//! paths), [`pins`], [`loss`] (what the loss of a target damages).

pub mod acl;
pub mod inode;
pub mod loss;
pub mod permission;
pub mod pins;
pub mod tree;

pub use inode::{
    Body, DirectoryBody, FileBody, Inode, LayoutDefaults, LinkedDirectory, ObjectState, ParentLink,
};
