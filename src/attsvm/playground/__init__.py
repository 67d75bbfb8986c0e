"""An interactive page: tokens, scores and settings go in, a picture of training and of its SVM comes out.

The front end in `static` is one ES module for anywidget's model interface. `attsvm play`
(:mod:`attsvm.playground.server`) and notebooks (:mod:`attsvm.playground.widget`) display it.
"""
