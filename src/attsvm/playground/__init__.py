"""An interactive page: tokens, scores and settings go in, a picture of training and of its SVM comes out.

Everything is computed in the browser, by the scripts in `static`: `index.html` opens from disk or from any host.
`attsvm play` opens it, and notebooks (:mod:`attsvm.playground.widget`) display the same scripts.
"""
